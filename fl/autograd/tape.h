/* fl/autograd/tape.h - the autograd graph in Graphviz format */
#ifndef FL_AUTOGRAD_H
#include "../../fl_autograd.h"
#endif
#ifndef FL_AUTOGRAD_TAPE_H
#define FL_AUTOGRAD_TAPE_H

#ifdef __cplusplus
extern "C" {
#endif

/* Writes the name of a leaf into buf, "" if it has none; fl_nn_param_path is one, with a module as user. */
typedef void (*fl_tape_name_fn)(const fl_var *leaf, void *user, char *buf, size_t size);
typedef struct fl_tape_opts {
    fl_opts_guard guard_;
    fl_tape_name_fn name; /* NULL: leaves have no names */
    void *user;
    char _end;
} fl_tape_opts;
/* Writes the graph of y in the DOT language into buf: a node per recorded op, a box per leaf, edges towards
   y labelled with shapes. Ops recorded with provenance notes (fl_provenance_enable(+1) before the forward
   pass) are grouped in a cluster per module. Returns the length as snprintf does; -1 after an error. */
#define fl_tape_format(...) FL__TAPE_FORMAT(__VA_ARGS__, ._end = 0)
#define FL__TAPE_FORMAT(y, buf, size, ...) \
    fl_tape_format_opt(y, buf, size, FL_LITERAL(fl_tape_opts, __VA_ARGS__))
FL_API int64_t fl_tape_format_opt(const fl_var *y, char *buf, size_t size, fl_tape_opts o);
/* Writes it to a file, for dot -Tsvg tape.dot > tape.svg. False after fl_fail. */
#define fl_tape_save(...) FL__TAPE_SAVE(__VA_ARGS__, ._end = 0)
#define FL__TAPE_SAVE(y, path, ...) fl_tape_save_opt(y, path, FL_LITERAL(fl_tape_opts, __VA_ARGS__))
FL_API bool fl_tape_save_opt(const fl_var *y, const char *path, fl_tape_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_AUTOGRAD_TAPE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_AUTOGRAD_TAPE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_AUTOGRAD_TAPE_IMPL
#define FL_AUTOGRAD_TAPE_IMPL
#include <stdio.h>
#include <string.h>

typedef struct fl__tape {
    const fl_var *y;
    fl_tape_opts o;
    const fl_node **node; /* indexed by number, y's node first */
    int64_t n, cap;
    bool *put; /* node i was written */
} fl__tape;

/* The number of a node; -1 if out of memory. Searches from the end, because most inputs were added
   recently. */
static int64_t fl__tape_number(fl__tape *t, const fl_node *n) {
    for (int64_t i = t->n; i-- > 0;)
        if (t->node[i] == n) return i;
    if (!fl_heap_grow(&t->node, &t->cap, t->n + 1, sizeof *t->node)) return -1;
    t->node[t->n] = n;
    return t->n++;
}

static bool fl__tape_number_nodes(fl__tape *t) {
    bool ok = !t->y->node || fl__tape_number(t, t->y->node) >= 0;
    for (int64_t i = 0; ok && i < t->n; i++)
        for (int k = 0; ok && k < fv_in_count(t->node[i]); k++)
            if (fv_in_node(t->node[i], k)) ok = fl__tape_number(t, fv_in_node(t->node[i], k)) >= 0;
    return ok && (t->put = fl_heap_alloc((size_t)t->n + 1)) != NULL;
}

/* The module in a node's provenance note, without the call site. */
static void fl__tape_module(const fl_node *n, char *buf, size_t size) {
    const char *made = fv_node_provenance(n), *at = strncmp(made, "at ", 3) ? strstr(made, " at ") : made;
    snprintf(buf, size, "%.*s", at ? (int)(at - made) : (int)size, made);
}

static void fl__tape_put_node(const fl__tape *t, fl_strbuf *to, int64_t i) {
    const fl_var *leaf = fv_leaf_of(t->node[i]);
    char name[200] = "";
    if (leaf && t->o.name) t->o.name(leaf, t->o.user, name, sizeof name);
    fl_strbuf_printf(to, "  n%lld [label=\"", (long long)i);
    fl_strbuf_put_json(to, leaf && *name ? name : fv_node_name(t->node[i]));
    if (leaf) fl_strbuf_printf(to, "\\n%s %s", fl_dtype_name(leaf->value->dtype), FL_SHAPE_TEXT(leaf->value));
    fl_strbuf_printf(to, "\"%s];\n", leaf ? ", shape=box" : "");
}

/* Writes the nodes of node i's module that were not written yet. */
static void fl__tape_put_cluster(const fl__tape *t, fl_strbuf *to, int64_t i) {
    char module[232], other[232];
    fl__tape_module(t->node[i], module, sizeof module);
    if (*module) {
        fl_strbuf_printf(to, "  subgraph cluster_%lld {\n  label=\"", (long long)i);
        fl_strbuf_put_json(to, module);
        fl_strbuf_printf(to, "\";\n");
    }
    for (int64_t k = i; k < t->n; k++) {
        fl__tape_module(t->node[k], other, sizeof other);
        if (t->put[k] || strcmp(module, other)) continue;
        fl__tape_put_node(t, to, k);
        t->put[k] = true;
    }
    if (*module) fl_strbuf_printf(to, "  }\n");
}

static void fl__tape_put(fl_strbuf *to, void *tape) {
    const fl__tape *t = tape;
    memset(t->put, 0, (size_t)t->n);
    fl_strbuf_printf(to, "digraph tape {\n  result [label=\"result\\n%s %s\", shape=box];\n",
                     fl_dtype_name(t->y->value->dtype), FL_SHAPE_TEXT(t->y->value));
    for (int64_t i = 0; i < t->n; i++)
        if (!t->put[i]) fl__tape_put_cluster(t, to, i);
    if (t->n) fl_strbuf_printf(to, "  n0 -> result;\n");
    for (int64_t i = 0; i < t->n; i++)
        for (int k = 0; k < fv_in_count(t->node[i]); k++) {
            const fl_node *from = fv_in_node(t->node[i], k);
            if (from)
                fl_strbuf_printf(to, "  n%lld -> n%lld [label=\"%s\"];\n",
                                 (long long)fl__tape_number((fl__tape *)tape, from), (long long)i,
                                 FL_TEXT_OF(fv_in_shape(t->node[i], k)));
        }
    fl_strbuf_printf(to, "}\n");
}

/* Writes to text or to a file; false after an error. */
static bool fl__tape_write(const char *fn, const fl_var *y, const fl_tape_opts *o, fl_strbuf *text,
                         const char *path) {
    fl__tape t = {.y = y, .o = *o};
    if (!y || (!text && !path)) return fl_fail("%s: the %s is NULL", fn, y ? "path" : "variable");
    bool ok = fl__tape_number_nodes(&t);
    if (ok && text) fl__tape_put(text, &t);
    if (ok && !text) ok = fl_write_file_atomic(fn, path, fl__tape_put, &t);
    fl_heap_free(t.node);
    fl_heap_free(t.put);
    return ok;
}

FL_API int64_t fl_tape_format_opt(const fl_var *y, char *buf, size_t size, fl_tape_opts o) {
    fl_strbuf text = {.buf = buf, .size = size};
    if (fl__tape_write("fl_tape_format", y, &o, &text, NULL)) return text.n;
    fl_raise();
    return -1;
}

FL_API bool fl_tape_save_opt(const fl_var *y, const char *path, fl_tape_opts o) {
    return fl__tape_write("fl_tape_save", y, &o, NULL, path);
}

#endif
#endif
/* MIT licence: see LICENSE. */
