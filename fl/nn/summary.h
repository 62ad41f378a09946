/* fl/nn/summary.h - table of a module tree: output shapes, parameters, multiply-adds, bytes */
#ifndef FL_NN_SUMMARY_H
#define FL_NN_SUMMARY_H
#include "module.h"
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_nn_summary_opts {
    fl_opts_guard guard_;
    fl_dtype dtype; /* of the input; 0 -> the first parameter's, or f32 */
    FILE *out;      /* NULL -> stdout */
    char _end;
} fl_nn_summary_opts;
/* Runs m once on zeros of that shape, in evaluation mode without recording, and prints one line per module:
   the output shape of its last call, its own parameters, and the multiply-adds of its own matrix products,
   convolutions and attention over all calls (biases, norms and activations count 0), and its output bytes;
   then totals. Modes, buffers, the global generator and hooks are restored. Returns false after an error. */
#define fl_nn_summary(...) FL_NN__SUMMARY(__VA_ARGS__, ._end = 0)
#define FL_NN__SUMMARY(m, shape, ...) fl_nn_summary_opt(m, shape, FL_LITERAL(fl_nn_summary_opts, __VA_ARGS__))
FL_API bool fl_nn_summary_opt(fl_nn_module *m, fl_shape shape, fl_nn_summary_opts o);
/* The same text for given inputs; to be freed with fl_heap_free. */
FL_API char *fl_nn_summary_text(fl_nn_module *m, fl_vars in);

#ifdef __cplusplus
}
#endif
#endif /* FL_NN_SUMMARY_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_NN_SUMMARY) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_NN_SUMMARY_IMPL
#define FL_NN_SUMMARY_IMPL
#include "../ops/copy.h"
#include "../ops/create.h"
#include "../ops/random.h"
#include "../tools/cost.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct fl__nn_row {
    fl_nn_module *m;
    bool train;      /* mode before the run */
    int depth;
    int64_t caller;  /* row of the calling module; -1: none */
    int n_out;       /* 0: not called */
    fl_shape out;    /* of the first result */
    int64_t params, macs, out_bytes;
} fl__nn_row;

/* A buffer, and a copy of its value before the run. */
typedef struct fl__nn_saved_buffer {
    fl_tensor *buffer, *copy;
    uint32_t version;
} fl__nn_saved_buffer;

typedef struct fl__nn_summary {
    fl__nn_row *row;
    fl__nn_saved_buffer *before;
    int64_t n, cap, n_before, before_cap;
    int64_t at;               /* row of the running module; -1: none */
    fl_cost_counter cost;     /* total so far */
    int64_t counted;          /* part of cost.macs already attributed to rows */
    int64_t params, param_bytes, buffer_bytes, in_bytes;
} fl__nn_summary;

static int64_t fl__nn_bytes(const fl_tensor *t) {
    return fl_numel(t) * (int64_t)fl_dtype_size(t->dtype);
}

/* ---- rows ---- */

static bool fl__nn_param_is_new(const fl__nn_summary *s, const fl_var *p) {
    for (int64_t r = 0; r < s->n; r++) /* the last row is under construction; weights may be tied */
        for (int64_t i = 0; i < s->row[r].m->n_param; i++)
            if (s->row[r].m->param[i].var == p) return r == s->n - 1;
    return true;
}

static bool fl__nn_add_row(fl_nn_module *m, const char *prefix, void *user) {
    fl__nn_summary *s = user;
    if (!fl_heap_grow(&s->row, &s->cap, s->n + 1, sizeof *s->row) ||
        !fl_heap_grow(&s->before, &s->before_cap, s->n_before + m->n_buffer, sizeof *s->before))
        return false;
    fl__nn_row *row = &s->row[s->n++];
    *row = (fl__nn_row){.m = m, .train = m->train, .caller = -1};
    for (const char *p = prefix; *p; p++) row->depth += *p == '.';
    for (int64_t i = 0; i < m->n_param; i++) {
        const fl_tensor *t = fv_value(m->param[i].var);
        if (!fl__nn_param_is_new(s, m->param[i].var)) continue;
        row->params += fl_numel(t);
        s->param_bytes += fl__nn_bytes(t);
    }
    s->params += row->params;
    for (int64_t i = 0; i < m->n_buffer; i++) {
        fl_tensor *t = m->buffer[i].tensor, *copy = fl_clone(t);
        if (!copy) return false;
        s->before[s->n_before++] = (fl__nn_saved_buffer){t, copy, fl_version_of(t)};
        s->buffer_bytes += fl__nn_bytes(t);
    }
    return true;
}

/* ---- measuring the run ---- */

/* Attributes the cost since the last call to the row at `at`. */
static void fl__nn_count(fl__nn_summary *s) {
    if (s->at >= 0) s->row[s->at].macs += s->cost.macs - s->counted;
    s->counted = s->cost.macs;
}

static void fl__nn_on_module(fl_nn_module *m, const fl_vars *out, void *user) {
    fl__nn_summary *s = user;
    int64_t i = 0;
    fl__nn_count(s);
    while (i < s->n && s->row[i].m != m) i++;
    if (i == s->n) return; /* not in the tree: counts for its caller */
    fl__nn_row *row = &s->row[i];
    if (!out) {
        row->caller = s->at;
        s->at = i;
        return;
    }
    s->at = row->caller;
    row->n_out = out->n;
    row->out = fl_shape_of(fv_value(out->v[0]));
    row->out_bytes = 0;
    for (int k = 0; k < out->n; k++) row->out_bytes += fl__nn_bytes(fv_value(out->v[k]));
}

/* Runs m and restores everything that the run may change. */
static bool fl__nn_measure(fl__nn_summary *s, fl_nn_module *m, fl_vars in) {
    const fl_rng rng = fl_rng_state();
    const bool recorded = fl_no_grad(true);
    fl_nn_train(m, false);
    const fl_nn_call_hook watch = fl_nn_set_call_hook((fl_nn_call_hook){fl__nn_on_module, s});
    fl_cost_begin(&s->cost);
    bool ok = fl_nn_forward_vars(m, in).n > 0;
    fl_cost_end(&s->cost);
    fl__nn_count(s);
    fl_nn_set_call_hook(watch);
    fl_rng_set_state(rng);
    for (int64_t i = 0; i < s->n; i++) s->row[i].m->train = s->row[i].train;
    for (int64_t i = 0; i < s->n_before; i++) {
        const fl__nn_saved_buffer *b = &s->before[i];
        if (fl_version_of(b->buffer) != b->version) ok = fl_assign(b->buffer, b->copy) && ok;
    }
    fl_no_grad(recorded);
    return ok;
}

/* ---- formatting ---- */

/* The first two columns of a row, FL_NN_PATH bytes each. */
static void fl__nn_cells(const fl__nn_row *row, char *name, char *out) {
    fl_nn_text t = {out, FL_NN_PATH, 0};
    const char *own = row->depth ? row->m->name : "";
    snprintf(name, FL_NN_PATH, "%*s%s%s%s", 2 * row->depth, "", own, *own ? ": " : "", row->m->kind);
    if (!row->n_out) fl_nn_put(&t, "not called");
    else fl_nn_put_shape(&t, &row->out);
    if (row->n_out > 1) fl_nn_put(&t, " and %d more", row->n_out - 1);
}

/* A right-aligned number, "-" for 0. */
static void fl__nn_put_count(fl_nn_text *t, int64_t n) {
    if (n) fl_nn_put(t, "  %14" PRId64, n);
    else fl_nn_put(t, "  %14s", "-");
}

static void fl__nn_put_summary(fl_nn_text *t, const fl__nn_summary *s) {
    char name[FL_NN_PATH], shape[FL_NN_PATH];
    int first = (int)strlen("Module"), second = (int)strlen("Output");
    int64_t out = 0;
    for (int64_t i = 0; i < s->n; i++) {
        fl__nn_cells(&s->row[i], name, shape);
        if ((int)strlen(name) > first) first = (int)strlen(name);
        if ((int)strlen(shape) > second) second = (int)strlen(shape);
        if (!s->row[i].m->n_child) out += s->row[i].out_bytes; /* a container's output is a child's */
    }
    fl_nn_put(t, "%-*s  %-*s  %14s  %14s  %14s\n", first, "Module", second, "Output", "Parameters",
              "Multiply-adds", "Output bytes");
    for (int64_t i = 0; i < s->n; i++) {
        fl__nn_cells(&s->row[i], name, shape);
        fl_nn_put(t, "%-*s  %-*s", first, name, second, shape);
        fl__nn_put_count(t, s->row[i].params);
        fl__nn_put_count(t, s->row[i].macs);
        fl__nn_put_count(t, s->row[i].out_bytes);
        fl_nn_put(t, "\n");
    }
    fl_nn_put(t, "%-*s  %-*s  %14" PRId64 "  %14" PRId64 "  %14" PRId64 "\n", first, "Total", second, "",
              s->params, s->cost.macs, out);
    fl_nn_put(t, "Bytes: input %" PRId64 ", parameters %" PRId64 ", buffers %" PRId64 "\n", s->in_bytes,
              s->param_bytes, s->buffer_bytes);
}

FL_API char *fl_nn_summary_text(fl_nn_module *m, fl_vars in) {
    fl__nn_summary s = {.at = -1};
    char *text = NULL;
    if (!fl_given(m, "fl_nn_summary", "the module")) return fl_raise();
    fl_quiet(+1);
    fl_scope scope = fl_scope_begin();
    bool ok = fl_nn_visit_modules(m, fl__nn_add_row, &s);
    for (int i = 0; ok && i < in.n && i < FL_VARS_MAX; i++)
        if (in.v[i]) s.in_bytes += fl__nn_bytes(fv_value(in.v[i]));
    if (ok && fl__nn_measure(&s, m, in) && !fl_error()) { /* ops are not counted while an error is pending */
        fl_nn_text t = {NULL, 0, 0};
        fl__nn_put_summary(&t, &s);
        text = fl_heap_alloc((size_t)t.n + 1);
        t = (fl_nn_text){text, (size_t)t.n + 1, 0};
        if (text) fl__nn_put_summary(&t, &s);
    }
    fl_scope_end(&scope);
    fl_heap_free(s.row);
    fl_heap_free(s.before);
    fl_quiet(-1);
    return text ? text : fl_raise();
}

FL_API bool fl_nn_summary_opt(fl_nn_module *m, fl_shape shape, fl_nn_summary_opts o) {
    if (!fl_given(m, "fl_nn_summary", "the module")) return fl_raise() != NULL;
    fl_scope s = fl_scope_begin();
    const fv_list p = fl_nn_parameters(m);
    fl_dtype dtype = o.dtype ? o.dtype : p.n ? fv_value(p.v[0])->dtype : FL_F32;
    fl_tensor *x = fl_zeros(shape, dtype);
    char *text = x ? fl_nn_summary_text(m, FL_VARS(fv_const(x))) : NULL;
    fl_scope_end(&s);
    if (!text) return false;
    const bool ok = fputs(text, o.out ? o.out : stdout) >= 0;
    fl_heap_free(text);
    return ok || fl_fail("fl_nn_summary: cannot write to the output file");
}

#endif
#endif

/* MIT licence: see LICENSE. */
