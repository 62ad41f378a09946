/* fl/graph/rows.h - groups with reductions along the last axis: a few rows at a time, in the cache

   A group of rows is a part of an order: programs of element-wise calls on [rows, n] or, with one number per
   row, on [rows], and folds of rows, with the cpu's loops for both, so that the bits are those of the calls.
   A window of rows passes all steps before the next one is read. So whatever the group writes may be touched
   in it only row by row: a view of other rows, or of the same ones in another layout, ends the group. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_GRAPH_ROWS_H
#define FL_GRAPH_ROWS_H
#include "group.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Internal to fl/graph. */
/* Replaces parts of o by groups of rows, of at least `least` elements; its uses have been set, but are not
   changed. w: of its groups. True if there are any. */
FL_PRIVATE bool fl__order_rows(fl__order *o, const fl_graph_list *l, fl__grouping *w, int64_t least);
/* Runs the group of rows of an fl__grouped_call. */
FL_PRIVATE bool fl__rows_run(void *call);
/* Number of groups of rows that have run. */
FL_PRIVATE int64_t fl__rows_count(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_GRAPH_ROWS_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_GRAPH_ROWS) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_GRAPH_ROWS_IMPL
#define FL_GRAPH_ROWS_IMPL
#include "../../kernels/cpu/common.h"
#include "../../kernels/cpu/formula.h"
#include "../../kernels/cpu/reduce.h"
#include "../../kernels/cpu/scratch.h"
#include <string.h>

enum {
    FL__ROW_STEPS = 16,
    FL__ROW_VALUES = 32,
    FL__ROW_ENTRIES = 24,      /* most entries of an order that become a group */
    FL__ROW_WINDOW = 8 << 10,  /* bytes of a value in a window, if a row is not longer */
    FL__ROW_BYTES = 512 << 10, /* of the values of a window: a part of the second-level cache */
    FL__ROW_STACK = 48 << 10   /* if they need no more, they are on the stack */
};

typedef struct fl__row_value {
    int value;
    fl__operand_of at;
    int8_t operand;            /* of the call: out[k], or in[k - 4]; -1: none, it is in the workspace alone */
    bool column;               /* one number per row */
    bool made;                 /* by a step */
    bool dense;                /* as the rows are */
    uint8_t size;              /* bytes of a number */
    int first_write, last_read; /* steps */
    int64_t place;             /* in the workspace; for inputs that are not dense too */
} fl__row_value;

typedef struct fl__row_step {
    fl_op op;                  /* of a fold; FL_OP_NONE: a program */
    const fl__group *group;    /* that program */
    bool column;
    uint8_t spread;            /* bit k: in[k] is a column that is expanded to rows */
    uint8_t n_in, n_out, in[FL__GROUP_INPUTS], out[FL_FORMULA_OUTPUTS]; /* values */
} fl__row_step;

struct fl__row_program {
    int64_t rows, n, window;   /* rows, numbers of a row, rows of a window */
    fl_dtype dtype;
    int n_steps, n_values;
    int64_t spread, spread_bytes, bytes; /* in the workspace: columns of a step, expanded; all of it */
    fl__row_step step[FL__ROW_STEPS];
    fl__row_value value[FL__ROW_VALUES];
};

/* ---- planning: entries begin ... end - 1 of an order ---- */

typedef struct fl__row_plan {
    fl__order *o;
    const fl_graph_list *l;
    int64_t groups;            /* of o, before this one */
    int begin, end;
    uint64_t state;
    bool folds, programs;      /* of rows */
    fl__group g;
    fl__row_program r;
} fl__row_plan;

static bool fl__is_arg(fl_op op) { return op == FL_OP_argmax || op == FL_OP_argmin; }

static bool fl__is_fold(fl_op op) {
    return op == FL_OP_sum || op == FL_OP_prod || op == FL_OP_amax || op == FL_OP_amin || fl__is_arg(op);
}

static fl__fold_op fl__row_fold(fl_op op) {
    return op == FL_OP_sum  ? FL__FOLD_SUM :
           op == FL_OP_prod ? FL__FOLD_PROD :
           op == FL_OP_amax || op == FL_OP_argmax ? FL__FOLD_AMAX : FL__FOLD_AMIN;
}

/* Whether t has the elements of the group's rows, or of a column. */
static bool fl__has_rows(const fl__row_program *r, const fl_tensor *t, bool column) {
    if (column) return fl_numel(t) == r->rows;
    return t->ndim > 0 && t->shape[t->ndim - 1] == r->n && fl_numel(t) == r->rows * r->n;
}

/* Whether t is a dense column that is expanded to rows. */
static bool fl__is_spread(const fl_tensor *t) {
    int64_t step = 1;
    for (int i = t->ndim - 2; i >= 0; i--) {
        if (t->shape[i] == 1) continue;
        if (t->stride[i] != step) return false;
        step *= t->shape[i];
    }
    return t->stride[t->ndim - 1] == 0;
}

static fl__row_value *fl__row_value_new(fl__row_plan *p, fl__operand_of at, bool column) {
    if (p->r.n_values == FL__ROW_VALUES) return NULL;
    fl__row_value *v = &p->r.value[p->r.n_values++];
    const fl_tensor *t = fl__operand_at(p->l, at);
    *v = (fl__row_value){.value = fl__value_at(p->l, at), .at = at, .operand = -1, .column = column,
                         .dense = fl_is_contiguous(t), .size = (uint8_t)fl_dtype_size(t->dtype),
                         .first_write = FL__ROW_STEPS, .last_read = -1};
    return v;
}

/* Index of what the next step reads; -1 if it does not fit. *spread: as in fl__row_step. */
static int fl__row_read(fl__row_plan *p, fl__operand_of at, bool column, bool *spread) {
    const fl_tensor *t = fl__operand_at(p->l, at);
    fl__row_program *r = &p->r;
    *spread = false;
    if (!fl__has_rows(r, t, column)) return -1;
    int i = 0;
    for (; i < r->n_values; i++) {
        fl__row_value *v = &r->value[i];
        const fl_tensor *of = fl__operand_at(p->l, v->at);
        if (v->value != fl__value_at(p->l, at)) continue;
        if (!v->made && v->column == column && fl__same_handle(of, t)) break;
        if (!v->made) continue;
        *spread = v->column && !column && fl__is_spread(t);
        if (t->dtype != of->dtype || t->offset != of->offset) return -1;
        if (!*spread && (v->column != column || !fl_is_contiguous(t))) return -1;
        break;
    }
    if (i == r->n_values) {
        fl__row_value *v = p->g.n_in < FL__GROUP_INPUTS ? fl__row_value_new(p, at, column) : NULL;
        if (!v) return -1;
        v->operand = (int8_t)(4 + p->g.n_in);
        p->g.in[p->g.n_in++] = at;
    }
    r->value[i].last_read = r->n_steps;
    return i;
}

/* True if the calls of other entries, or a holder outside of the list, use what the group makes. */
static bool fl__row_is_stored(const fl__row_plan *p, int value) {
    const fl_graph_value *v = &p->l->value[value];
    return !v->made || p->o->first[value] < p->begin || p->o->last[value] >= p->end || fl__is_held(v);
}

/* Index of what the next step writes; -1 if it does not fit. */
static int fl__row_write(fl__row_plan *p, fl__operand_of at, bool column) {
    const fl_tensor *t = fl__operand_at(p->l, at);
    fl__row_program *r = &p->r;
    fl__row_value *v = NULL;
    if (!fl__has_rows(r, t, column) || !fl_is_contiguous(t)) return -1;
    for (int i = 0; i < r->n_values; i++) { /* all rows so far have been read and written as this one */
        const fl_tensor *of = fl__operand_at(p->l, r->value[i].at);
        if (r->value[i].value != fl__value_at(p->l, at)) continue;
        if (r->value[i].column != column || of->dtype != t->dtype || of->offset != t->offset ||
            !fl_is_contiguous(of))
            return -1;
        v = &r->value[i];
    }
    if (!v && !(v = fl__row_value_new(p, at, column))) return -1;
    v->made = true;
    if (r->n_steps < v->first_write) v->first_write = r->n_steps;
    if (v->operand >= 4 || (v->operand < 0 && fl__row_is_stored(p, v->value))) {
        if (p->g.n_out == FL_FORMULA_OUTPUTS) return -1;
        v->operand = (int8_t)p->g.n_out;
        p->g.out[p->g.n_out++] = at;
    }
    return (int)(v - r->value);
}

/* Sets rows and n if t has the first ones. */
static void fl__row_shape(fl__row_plan *p, const fl_tensor *t, fl_dtype d) {
    if (p->r.dtype != FL_DTYPE_NONE) return;
    p->r.dtype = d;
    p->r.n = t->ndim ? t->shape[t->ndim - 1] : 0;
    p->r.rows = p->r.n > 0 ? fl_numel(t) / p->r.n : 0;
}

static bool fl__row_add_program(fl__row_plan *p, const fl__group *g) {
    const fl_tensor *y = fl__operand_at(p->l, g->out[0]);
    fl__row_shape(p, y, g->dtype);
    fl__row_step *s = &p->r.step[p->r.n_steps];
    *s = (fl__row_step){.group = g, .column = !fl__has_rows(&p->r, y, false)};
    if (g->dtype != p->r.dtype || y->backend || g->mixed || g->generated) return false;
    for (int k = 0; k < g->n_in; k++) {
        bool spread;
        const int v = fl__row_read(p, g->in[k], s->column, &spread);
        if (v < 0) return false;
        s->in[s->n_in++] = (uint8_t)v;
        s->spread |= (uint8_t)(spread << k);
    }
    for (int k = 0; k < g->n_out; k++) {
        const int v = fl__row_write(p, g->out[k], s->column);
        if (v < 0) return false;
        s->out[s->n_out++] = (uint8_t)v;
    }
    p->programs |= !s->column;
    return true;
}

/* The last axis alone is reduced, and dense: then each row is one line for the cpu's reduction too. */
static bool fl__row_add_fold(fl__row_plan *p, int i) {
    const fl_call *c = &p->l->call[i].call;
    const fl_tensor *x = c->in[0];
    bool spread;
    if (!c->out[0] || c->out[0]->backend || x->weak || x->ndim < 1 || !fl__has_shipped_slot(0, c->op) ||
        ((const fl_reduce_args *)c->args)->axes != 1u << (x->ndim - 1) || x->stride[x->ndim - 1] != 1 ||
        (x->dtype != FL_F32 && x->dtype != FL_F64) ||
        c->out[0]->dtype != (fl__is_arg(c->op) ? FL_I64 : x->dtype))
        return false;
    fl__row_shape(p, x, x->dtype);
    if (x->dtype != p->r.dtype) return false;
    const int in = fl__row_read(p, (fl__operand_of){i, 4}, false, &spread);
    const int out = in < 0 || spread ? -1 : fl__row_write(p, (fl__operand_of){i, 0}, true);
    if (out < 0) return false;
    p->r.step[p->r.n_steps] = (fl__row_step){.op = c->op, .n_in = 1, .n_out = 1, .in = {(uint8_t)in},
                                             .out = {(uint8_t)out}};
    return p->folds = true;
}

/* Adds entry e, and those after it that make one program with it. Returns their number, 0 if it does not
   fit. */
static int fl__row_add(fl__row_plan *p, fl__grouping *w, int e) {
    const int run = p->o->run[e];
    const fl__group *g = run < 0 ? p->o->group[-1 - run] : NULL;
    const int call = g ? g->call[0] : run;
    int n = 1;
    bool ok;
    if (p->r.n_steps == FL__ROW_STEPS || !p->l->call[call].call.op) return 0;
    if (e == p->begin) p->state = p->l->call[call].state;
    if (p->l->call[call].state != p->state) return 0;
    if (!g && fl__is_fold(p->l->call[call].call.op)) {
        ok = fl__row_add_fold(p, call);
    } else {
        if (!g) {
            while (e + n < p->end && p->o->run[e + n] >= 0) n++;
            g = fl__group_of(w, &p->o->run[e], n);
            n = g ? g->n_calls : 1;
        }
        ok = g && fl__row_add_program(p, g);
    }
    p->r.n_steps += ok;
    return ok ? n : 0;
}

static int64_t fl__row_place(fl__row_program *r, int64_t bytes) {
    const int64_t at = r->bytes;
    r->bytes += (bytes + 2 * FL_ALIGN - 1) / FL_ALIGN * FL_ALIGN; /* not 4 KiB apart: they would alias */
    return at;
}

/* Places of values in the workspace, for smaller windows if need be, and which inputs an output may
   overwrite. False if they are too large. */
static bool fl__row_arrange(fl__row_plan *p) {
    fl__row_program *r = &p->r;
    const int64_t row = r->n * (int64_t)fl_dtype_size(r->dtype);
    int spread = 0;
    r->bytes = 0;
    for (int i = 0; i < r->n_values; i++) {
        fl__row_value *v = &r->value[i];
        if (v->operand < 0 || !v->dense)
            v->place = fl__row_place(r, r->window * (v->column ? 1 : r->n) * v->size);
    }
    for (int k = 0; k < r->n_steps; k++) {
        const int n = __builtin_popcount(r->step[k].spread);
        if (n > spread) spread = n;
    }
    r->spread = r->bytes;
    for (int k = 0; k < spread; k++) fl__row_place(r, r->window * row);
    r->spread_bytes = spread ? (r->bytes - r->spread) / spread : 0;
    if (r->bytes > FL__ROW_STACK && r->window > 1) {
        r->window /= 2;
        return fl__row_arrange(p);
    }
    for (int i = 0; i < r->n_values; i++)
        for (int k = 0; k < r->n_values; k++)
            if (r->value[i].operand >= 0 && r->value[i].operand < 4 && r->value[k].operand >= 4 &&
                r->value[k].last_read <= r->value[i].first_write)
                p->g.shares[r->value[i].operand] |= (uint8_t)(1u << (r->value[k].operand - 4));
    return r->bytes <= FL__ROW_BYTES;
}

/* True if no more memory is needed at once than by the entries one after the other. */
static bool fl__row_fits(const fl__row_plan *p) {
    int64_t calls = 0, rows = 0, workspaces = p->r.bytes > FL__ROW_STACK ? fl_threads() * p->r.bytes : 0;
    for (int e = p->begin; e < p->end; e++) {
        int64_t live = 0;
        rows = 0;
        for (int i = 0; i < p->r.n_values; i++) {
            const fl__row_value *r = &p->r.value[i];
            const fl_graph_value *v = &p->l->value[r->value];
            bool again = false;
            for (int k = 0; k < i; k++) again |= p->r.value[k].value == r->value;
            if (again) continue;
            if (r->operand >= 0) rows += v->bytes;
            if ((p->o->first[r->value] <= e || !v->made) && (p->o->last[r->value] >= e || fl__is_held(v)))
                live += v->bytes;
        }
        if (live > calls) calls = live;
    }
    return rows + workspaces <= calls;
}

static void fl__row_drop_tried(fl__row_plan *p) {
    while (p->o->n_groups > p->groups) fl_heap_free(p->o->group[--p->o->n_groups]);
}

/* A fold of more is a tree of parts, and few rows of more than a task are left to the calls, which share them
   out to threads. */
static bool fl__row_is_long(const fl__row_program *r) {
    return r->n > FL__CHUNK || (r->n > FL__GRAIN && r->rows < fl_threads());
}

/* Plans entries begin ... end - 1 as a group of rows, without what o has kept since it had `groups`. Returns
   the number of those that fit. */
static int fl__row_plan_of(fl__row_plan *p, fl__grouping *w, int begin, int end, int64_t least) {
    fl__row_drop_tried(p);
    memset(&p->r, 0, sizeof p->r);
    memset(&p->g, 0, offsetof(fl__group, number));
    p->begin = begin, p->end = end;
    p->folds = p->programs = false;
    int e = begin;
    for (int n; e < end && (n = fl__row_add(p, w, e)) > 0; e += n)
        if (e == begin && (p->r.n < 2 || p->r.rows * p->r.n < least || fl__row_is_long(&p->r))) break;
    return e - begin;
}

/* A group of the entries from `begin` on, kept by o; NULL: none. *end: behind them. */
static fl__group *fl__row_group_at(fl__row_plan *p, fl__grouping *w, fl__order *o, int begin, int *end,
                                int64_t least) {
    p->groups = o->n_groups;
    int n = fl__row_plan_of(p, w, begin, (int)fl__min(o->n, begin + FL__ROW_ENTRIES), least);
    for (; n > 1 && p->folds && p->programs; n--) {
        if (p->end != begin + n && fl__row_plan_of(p, w, begin, begin + n, least) < n) continue;
        if (!p->folds || !p->programs) break;
        const int64_t row = p->r.n * (int64_t)fl_dtype_size(p->r.dtype);
        p->r.window = fl__max(1, fl__min(p->r.rows, FL__ROW_WINDOW / row));
        if (!p->g.n_out || !fl__row_arrange(p) || !fl__row_fits(p)) continue;
        const int run = o->run[begin + n - 1];
        p->g.call[0] = run < 0 ? o->group[-1 - run]->call[o->group[-1 - run]->n_calls - 1] : run;
        p->g.n_calls = 1; /* the place of the group is that of its last call */
        fl__group *kept = fl__order_keep(o, &p->g);
        if (!kept || !(kept->rows = fl_heap_alloc(sizeof p->r))) break;
        memcpy(kept->rows, &p->r, sizeof p->r);
        *end = begin + n;
        return kept;
    }
    fl__row_drop_tried(p);
    return NULL;
}

FL_PRIVATE bool fl__order_rows(fl__order *o, const fl_graph_list *l, fl__grouping *w, int64_t least) {
    bool folds = false;
    for (int i = 0; !folds && i < o->n; i++)
        folds = o->run[i] >= 0 && fl__is_fold(l->call[o->run[i]].call.op) &&
                fl_numel(l->call[o->run[i]].call.in[0]) >= least;
    fl__row_plan *p = folds ? fl_heap_alloc(sizeof *p) : NULL;
    int n = 0, end;
    if (!p) return false;
    const int entries = o->n;
    p->o = o, p->l = l;
    for (int i = 0; i < entries; i = end) {
        end = i + 1;
        const fl__group *g = fl__row_group_at(p, w, o, i, &end, least);
        o->run[n++] = g ? -(int)o->n_groups : o->run[i];
    }
    fl_heap_free(p);
    o->n = n;
    return n < entries;
}

/* ---- running ---- */

static int64_t fl__rows_ran; /* atomic */

FL_PRIVATE int64_t fl__rows_count(void) { return __atomic_load_n(&fl__rows_ran, __ATOMIC_RELAXED); }

typedef struct fl__row_job {
    const fl__row_program *r;
    const fl_call *c;
    fl__iter at[FL__ROW_VALUES]; /* of operands of the call */
    struct {
        fl__executor program;
        fl__loop loop; /* that runs it, and its argument */
        const void *arg;
        fl__fold fold;
    } step[FL__ROW_STEPS];
    fl__scratch scratch;
} fl__row_job;

/* Whether all rows of n elements are the same. */
static bool fl__repeats(const fl__iter *w, int64_t n) {
    return w->ndim == 1 ? w->step[0] == 0 : w->ndim == 2 && w->dim[0] == n && w->step[1] == 0;
}

/* Where m rows of a value are, from `row` on. c: the place of an input that is not dense, which moves on. */
static char *fl__row_values(const fl__row_job *j, int i, fl__cursor *c, char *memory, int64_t row,
                            int64_t m) {
    const fl__row_value *v = &j->r->value[i];
    const fl__iter *w = &j->at[i];
    const int64_t n = v->column ? 1 : j->r->n;
    if (v->operand < 0) return memory + v->place;
    if (v->dense) return w->base + row * n * v->size;
    if (fl__repeats(w, n)) return memory + v->place;
    if (w->step[0] == w->size && fl__iter_row(w, c, m * n) == m * n) {
        char *at = c->ptr;
        fl__iter_advance(w, c, m * n);
        return at;
    }
    fl__iter_read(w, c, memory + v->place, m * n);
    return memory + v->place;
}

/* Runs step k for m rows; place: of each value. */
static void fl__row_step_run(const fl__row_job *j, int k, char *const place[], char *memory, int64_t m) {
    const fl__row_program *r = j->r;
    const fl__row_step *s = &r->step[k];
    char *spread = memory + r->spread;
    void *p[FL__OPERANDS];
    if (fl__is_arg(s->op)) {
        int64_t *to = (int64_t *)(void *)place[s->out[0]];
        fl__arg_dense_rows(fl__row_fold(s->op), r->dtype, to, place[s->in[0]], m, r->n);
        return;
    }
    if (s->op) {
        fl__fold_dense_rows(&j->step[k].fold, place[s->out[0]], place[s->in[0]], m, r->n);
        return;
    }
    for (int i = 0; i < s->n_out; i++) p[i] = place[s->out[i]];
    for (int i = 0; i < s->n_in; i++) {
        const int size = r->value[s->in[i]].size;
        const char *x = place[s->in[i]];
        p[s->n_out + i] = place[s->in[i]];
        if (!(s->spread >> i & 1)) continue;
        p[s->n_out + i] = spread;
        for (int64_t row = 0; row < m; row++)
            fl__fill_row(spread + row * r->n * size, x + row * size, r->n, size);
        spread += r->spread_bytes;
    }
    j->step[k].loop(p, s->column ? m : m * r->n, j->step[k].arg);
}

/* Task: rows first ... last - 1, a window at a time. */
static void fl__row_task(void *arg, int64_t first, int64_t last) {
    const fl__row_job *j = arg;
    const fl__row_program *r = j->r;
    _Alignas(FL_ALIGN) char stack[FL__ROW_STACK];
    char *memory = j->scratch.buffer ? fl__scratch_take(&j->scratch) : stack, *place[FL__ROW_VALUES];
    fl__cursor c[FL__ROW_VALUES];
    for (int i = 0; i < r->n_values; i++) {
        const fl__row_value *v = &r->value[i];
        if (v->dense) continue;
        const fl__iter *w = &j->at[i];
        const int64_t n = v->column ? 1 : r->n;
        c[i] = fl__iter_seek(w, first * n);
        if (!fl__repeats(w, n)) continue;
        fl__iter_read(w, &c[i], memory + v->place, n * fl__min(r->window, last - first));
    }
    for (int64_t row = first, m; row < last; row += m) {
        m = fl__min(last - row, r->window);
        for (int i = 0; i < r->n_values; i++)
            place[i] = fl__row_values(j, i, &c[i], memory, row, m);
        for (int k = 0; k < r->n_steps; k++) fl__row_step_run(j, k, place, memory, m);
    }
    if (memory != stack) fl__scratch_give_back(&j->scratch, memory);
}

/* Prepares the steps, with the weak numbers of the list's calls. */
static bool fl__row_job_begin(fl__row_job *j, const fl_graph_list *l) {
    const fl__row_program *r = j->r;
    for (int k = 0; k < r->n_steps; k++) {
        const fl__row_step *s = &r->step[k];
        if (s->op) j->step[k].fold = fl__fold_of(fl__row_fold(s->op), r->dtype);
        else if (!fl__executor_begin(&j->step[k].program, &s->group->args.program, r->dtype))
            return fl__no_kernel(j->c, r->dtype);
        for (int i = 0; !s->op && i < s->group->n_numbers; i++)
            fl_number_store(r->dtype, &j->step[k].program.number[s->group->constant[i]],
                            (fl_number){true, fl__operand_at(l, s->group->number[i])->f64, 0});
        if (!s->op)
            j->step[k].loop = fl__executor_loop(&j->step[k].program, r->rows * (s->column ? 1 : r->n),
                                                false, &j->step[k].arg);
    }
    for (int i = 0; i < r->n_values; i++) {
        const int k = r->value[i].operand;
        if (k >= 0) fl__iter_init(&j->at[i], k < 4 ? j->c->out[k] : j->c->in[k - 4], FL_READ, NULL);
    }
    return true;
}

FL_PRIVATE bool fl__rows_run(void *call) {
    const fl__grouped_call *made = call;
    const fl__row_program *r = made->group->rows;
    const fl_call *c = &made->call.call;
    fl__row_job j = {.r = r, .c = c};
    if (!fl__operands_map(c)) return false;
    const bool ok =
        fl__row_job_begin(&j, made->list) &&
        (r->bytes <= FL__ROW_STACK || fl__scratch_open(&j.scratch, r->rows, r->bytes, 0, fl_op_name(c->op)));
    if (ok) {
        fl_parallel(r->rows, fl__max(r->window, FL__GRAIN / r->n), fl__row_task, &j);
        if (j.scratch.buffer) fl__scratch_close(&j.scratch);
        __atomic_fetch_add(&fl__rows_ran, 1, __ATOMIC_RELAXED);
    }
    fl__operands_unmap(c, c->n_out + c->n_in);
    return ok;
}

#endif
#endif
/* MIT licence: see LICENSE. */
