/* fl/nn/save.h - saving and loading parameters and buffers; state dicts */
#ifndef FL_NN_SAVE_H
#define FL_NN_SAVE_H
#include "module.h"
#include "../data/safetensors.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes all parameters and buffers, named by path, to a safetensors file, which is replaced atomically. A
   parameter with several paths (tied weights) is written once, under the first. These functions return false
   after an error and never abort. */
FL_API bool fl_nn_save(fl_nn_module *m, const char *path);
typedef struct fl_nn_load_opts {
    fl_opts_guard guard_;
    bool partial;       /* neither missing nor unexpected names are errors (PyTorch's strict=False) */
    bool cast;          /* convert other dtypes; otherwise they are an error */
    const char *prefix; /* of the names in the file that belong to m, e.g. "model."; NULL -> "" */
    /* Patterns of names (after the prefix) separated by spaces: "head.* *.bias". * matches any characters, ?
       one. Matching names are skipped: not read, neither missing nor unexpected. */
    const char *ignore;
    char _end;
} fl_nn_load_opts;
/* Overwrites parameters and buffers from a file. All names, shapes and dtypes are checked before anything is
   changed; the error names the first mismatch. Of a parameter with several paths one suffices. */
#define fl_nn_load(...) FL_NN__LOAD(__VA_ARGS__, ._end = 0)
#define FL_NN__LOAD(m, path, ...) fl_nn_load_opt(m, path, FL_LITERAL(fl_nn_load_opts, __VA_ARGS__))
FL_API bool fl_nn_load_opt(fl_nn_module *m, const char *path, fl_nn_load_opts o);

/* A state dict: tensors by name, to save or to load. For custom checkpoints: add several modules and
   optimizers, then save, or read and commit. Initialise with {0}. */
typedef struct fl_nn_state_item {
    char *name;
    fl_tensor *tensor;  /* the live tensor; with `host` a snapshot of it */
    void *host;         /* host memory, overwritten by commit */
    bool fixed;         /* the value in the file must equal `tensor` */
    fl_tensor *loaded_;
} fl_nn_state_item;
typedef struct fl_nn_state {
    fl_nn_state_item *item;
    int64_t n, cap_;
} fl_nn_state;
/* Adds a tensor, host memory, or all parameters and buffers of a module, under the name prefix + name. */
FL_API bool fl_nn_state_add(fl_nn_state *s, const char *prefix, const char *name, fl_tensor *t);
FL_API bool fl_nn_state_add_host(fl_nn_state *s, const char *prefix, const char *name, void *host,
                                 fl_shape shape, fl_dtype dtype);
FL_API bool fl_nn_state_add_module(fl_nn_state *s, const char *prefix, fl_nn_module *m);
/* Adds a double, an int64_t, or a generator's state in host memory. */
FL_API bool fl_nn_state_add_number(fl_nn_state *s, const char *prefix, const char *name, double *number);
FL_API bool fl_nn_state_add_integer(fl_nn_state *s, const char *prefix, const char *name, int64_t *number);
FL_API bool fl_nn_state_add_rng(fl_nn_state *s, const char *prefix, const char *name, fl_rng *rng);
/* Adds a number that the file must match, e.g. the number of batches per epoch. */
FL_API bool fl_nn_state_add_fixed(fl_nn_state *s, const char *prefix, const char *name, int64_t number);
/* Writes the items, and n_meta pairs of metadata, to a safetensors file, which is replaced atomically. */
FL_API bool fl_nn_state_save(const fl_nn_state *s, const char *path, const fl_data_key_value *meta,
                             int n_meta);
/* Reads every item of s from f without changing live tensors. Names in f that start with prefix (NULL: "")
   and are not in s are unexpected. what: prefix of error messages. */
FL_API bool fl_nn_state_read(fl_nn_state *s, fl_data_file *f, const char *what, const char *prefix,
                             bool partial);
/* Overwrites the live tensors with the values read. Needs no memory on the cpu backend, hence cannot fail
   there. */
FL_API bool fl_nn_state_commit(fl_nn_state *s);
FL_API void fl_nn_state_free(fl_nn_state *s);

#ifdef __cplusplus
}
#endif
#endif /* FL_NN_SAVE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_NN_SAVE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_NN_SAVE_IMPL
#define FL_NN_SAVE_IMPL
#include "../ops/copy.h"
#include <stdio.h>
#include <string.h>

FL_API void fl_nn_state_free(fl_nn_state *s) {
    if (!s) return;
    for (int64_t i = 0; i < s->n; i++) {
        fl_heap_free(s->item[i].name);
        fl_drop(s->item[i].tensor);
        fl_drop(s->item[i].loaded_);
    }
    fl_heap_free(s->item);
    *s = (fl_nn_state){0};
}

static bool fl__nn_state_push(fl_nn_state *s, const char *prefix, const char *name, fl_tensor *t,
                              void *host) {
    const size_t size = strlen(prefix) + strlen(name) + 1;
    if (!fl_heap_grow(&s->item, &s->cap_, s->n + 1, sizeof *s->item)) return false;
    char *full = fl_heap_alloc(size);
    if (!full) return false;
    snprintf(full, size, "%s%s", prefix, name);
    s->item[s->n++] = (fl_nn_state_item){.name = full, .tensor = fl_keep(t), .host = host};
    return true;
}

FL_API bool fl_nn_state_add(fl_nn_state *s, const char *prefix, const char *name, fl_tensor *t) {
    return fl_given(s, "fl_nn_state_add", "the state") &&
           fl_given(t, "fl_nn_state_add", "the tensor") &&
           fl__nn_state_push(s, prefix, name, t, NULL);
}

FL_API bool fl_nn_state_add_host(fl_nn_state *s, const char *prefix, const char *name, void *host,
                                 fl_shape shape, fl_dtype dtype) {
    if (!fl_given(s, "fl_nn_state_add_host", "the state") ||
        !fl_given(host, "fl_nn_state_add_host", "the memory"))
        return false;
    fl_quiet(+1);
    fl_scope scope = fl_scope_begin();
    fl_tensor *t = fl_from_host(host, shape, dtype);
    const bool ok = t && fl__nn_state_push(s, prefix, name, t, host);
    fl_scope_end(&scope);
    fl_quiet(-1);
    return ok;
}

FL_API bool fl_nn_state_add_number(fl_nn_state *s, const char *prefix, const char *name, double *number) {
    return fl_nn_state_add_host(s, prefix, name, number, FL_SCALAR_SHAPE, FL_F64);
}

FL_API bool fl_nn_state_add_integer(fl_nn_state *s, const char *prefix, const char *name, int64_t *number) {
    return fl_nn_state_add_host(s, prefix, name, number, FL_SCALAR_SHAPE, FL_I64);
}

FL_API bool fl_nn_state_add_rng(fl_nn_state *s, const char *prefix, const char *name, fl_rng *rng) {
    return fl_nn_state_add_host(s, prefix, name, rng, FL_SHAPE(2), FL_U64);
}

FL_API bool fl_nn_state_add_fixed(fl_nn_state *s, const char *prefix, const char *name, int64_t number) {
    if (!fl_nn_state_add_integer(s, prefix, name, &number)) return false;
    fl_nn_state_item *item = &s->item[s->n - 1];
    item->host = NULL;
    return item->fixed = true;
}

typedef struct fl__nn_collector {
    fl_nn_state *state;
    const char *prefix;
} fl__nn_collector;

/* Adds a module's parameters, buffers, and the extra state of its type. */
static bool fl__nn_collect(fl_nn_module *m, const char *prefix, void *user) {
    const fl__nn_collector *c = user;
    char path[FL_NN_PATH];
    for (int64_t i = 0; i < m->n_param; i++) {
        snprintf(path, sizeof path, "%s%s", prefix, m->param[i].name);
        if (!fl__nn_state_push(c->state, c->prefix, path, fv_value(m->param[i].var), NULL)) return false;
    }
    for (int64_t i = 0; i < m->n_buffer; i++) {
        snprintf(path, sizeof path, "%s%s", prefix, m->buffer[i].name);
        if (!fl__nn_state_push(c->state, c->prefix, path, m->buffer[i].tensor, NULL)) return false;
    }
    size_t bytes = 0;
    void *host = m->type->state ? m->type->state(m, &bytes) : NULL;
    if (!host) return true;
    snprintf(path, sizeof path, "%s%s", prefix, "_extra_state");
    return fl_nn_state_add_host(c->state, c->prefix, path, host, FL_SHAPE((int64_t)bytes), FL_U8);
}

FL_API bool fl_nn_state_add_module(fl_nn_state *s, const char *prefix, fl_nn_module *m) {
    fl__nn_collector c = {s, prefix};
    return fl_given(s, "fl_nn_state_add_module", "the state") &&
           fl_given(m, "fl_nn_state_add_module", "the module") &&
           fl_nn_visit_modules(m, fl__nn_collect, &c);
}

/* The first item with the tensor of item i: i itself unless tied. */
static int64_t fl__nn_first_of(const fl_nn_state *s, int64_t i) {
    int64_t k = 0;
    while (s->item[k].tensor != s->item[i].tensor) k++;
    return k;
}

FL_API bool fl_nn_state_save(const fl_nn_state *s, const char *path, const fl_data_key_value *meta,
                             int n_meta) {
    size_t bytes = 0;
    if (!fl_given(s, "fl_nn_state_save", "the state")) return false;
    if (!fl__mul_size((size_t)s->n, sizeof(fl_data_named_tensor), &bytes))
        return fl_fail("fl_nn_state_save: too many tensors (%lld)", (long long)s->n);
    fl_data_named_tensor *named = fl_heap_alloc(bytes ? bytes : 1);
    int n = 0;
    if (!named) return false;
    for (int64_t i = 0; i < s->n; i++)
        if (fl__nn_first_of(s, i) == i) named[n++] = (fl_data_named_tensor){s->item[i].name,
                                                                            s->item[i].tensor};
    fl_quiet(+1);
    const bool ok = fl_data_save_safetensors(path, named, n, meta, n_meta);
    fl_quiet(-1);
    fl_heap_free(named);
    return ok;
}

/* A list of up to eight names. */
typedef struct fl__nn_names {
    char text[512];
    int n;
} fl__nn_names;

static void fl__nn_names_add(fl__nn_names *l, const char *name) {
    const size_t len = strlen(l->text);
    if (l->n++ < 8) snprintf(l->text + len, sizeof l->text - len, "%s%s", len ? ", " : "", name);
    else if (l->n == 9) snprintf(l->text + len, sizeof l->text - len, ", ...");
}

static bool fl__nn_state_has(const fl_nn_state *s, const char *name) {
    for (int64_t i = 0; i < s->n; i++)
        if (!strcmp(s->item[i].name, name)) return true;
    return false;
}

/* Whether the pattern up to `end` matches the whole name. */
static bool fl__nn_matches(const char *pattern, const char *end, const char *name) {
    for (; pattern < end && *pattern != '*'; pattern++, name++)
        if (!*name || (*pattern != '?' && *pattern != *name)) return false;
    if (pattern == end) return !*name;
    while (!fl__nn_matches(pattern + 1, end, name))
        if (!*name++) return false;
    return true;
}

static bool fl__nn_is_below(const char *name, const char *prefix) {
    return !strncmp(name, prefix, strlen(prefix));
}

static bool fl__nn_ignored(const fl_nn_load_opts *o, const char *name) {
    const size_t n = fl__nn_is_below(name, o->prefix) ? strlen(o->prefix) : 0;
    for (const char *p = o->ignore; p && *p; p += strspn(p, " ")) {
        const char *end = p + strcspn(p, " ");
        if (fl__nn_matches(p, end, name + n)) return true;
        p = end;
    }
    return false;
}

/* Index of item i in the file; -1 if it is not there or ignored. */
static int64_t fl__nn_find(const fl_nn_state *s, int64_t i, const fl_data_file *f, const fl_nn_load_opts *o) {
    return fl__nn_ignored(o, s->item[i].name) ? -1 : fl_data_find(f, s->item[i].name);
}

/* Whether the file has item i under no name of its tensor. */
static bool fl__nn_is_missing(const fl_nn_state *s, int64_t i, const fl_data_file *f,
                              const fl_nn_load_opts *o) {
    if (fl__nn_ignored(o, s->item[i].name)) return false;
    for (int64_t k = 0; k < s->n; k++)
        if (s->item[k].tensor == s->item[i].tensor && fl__nn_find(s, k, f, o) >= 0) return false;
    return true;
}

/* Checks that every item is in the file, and every name in the file with the prefix is an item. */
static bool fl__nn_names_match(const fl_nn_state *s, const fl_data_file *f, const char *what,
                               const fl_nn_load_opts *o) {
    fl__nn_names missing = {"", 0}, unexpected = {"", 0};
    for (int64_t i = 0; i < s->n; i++)
        if (fl__nn_is_missing(s, i, f, o)) fl__nn_names_add(&missing, s->item[i].name);
    for (int64_t i = 0; i < fl_data_count(f); i++) {
        const char *name = fl_data_name(f, i);
        if (fl__nn_is_below(name, o->prefix) && !fl__nn_ignored(o, name) && !fl__nn_state_has(s, name))
            fl__nn_names_add(&unexpected, name);
    }
    if (!missing.n && !unexpected.n) return true;
    return fl_fail("%s: %d names missing%s%s; %d unexpected%s%s", what, missing.n,
                   missing.n ? ": " : "", missing.text, unexpected.n, unexpected.n ? ": " : "",
                   unexpected.text);
}

/* Checks that tensor `at` of the file has the item's shape, and its dtype unless cast. */
static bool fl__nn_item_fits(const fl_nn_state_item *item, const fl_data_file *f, int64_t at,
                             const char *what, bool cast) {
    const fl_shape have = fl_data_shape(f, at), want = fl_shape_of(item->tensor);
    const fl_dtype dtype = fl_data_dtype(f, at);
    bool ok = (dtype == item->tensor->dtype || (cast && !item->host)) && have.ndim == want.ndim;
    for (int i = 0; ok && i < have.ndim; i++) ok = have.dim[i] == want.dim[i];
    if (ok) return true;
    char a[FL_NN_SHAPE], b[FL_NN_SHAPE];
    return fl_fail("%s: '%s' is %s %s, but the file has %s %s", what, item->name,
                   fl_dtype_name(item->tensor->dtype), fl_shape_text(want, a, sizeof a),
                   fl_dtype_name(dtype), fl_shape_text(have, b, sizeof b));
}

static bool fl__nn_read_item(fl_nn_state_item *item, fl_data_file *f, const char *what, bool found) {
    fl_drop(item->loaded_);
    item->loaded_ = NULL;
    if (!found) return true;
    if (!item->host && !fl_is_writable(what, item->tensor)) return false;
    fl_scope scope = fl_scope_begin();
    fl_tensor *t = fl_data_read(f, item->name);
    item->loaded_ = t ? fl_keep(fl_to(t, fl_backend_name(item->tensor))) : NULL;
    fl_scope_end(&scope);
    if (!item->loaded_ || !item->fixed) return item->loaded_ != NULL;
    const int64_t here = fl_item_int(item->tensor), there = fl_item_int(item->loaded_);
    return here == there || fl_fail("%s: '%s' is %lld, but the file has %lld", what, item->name,
                                    (long long)here, (long long)there);
}

static bool fl__nn_state_read(fl_nn_state *s, fl_data_file *f, const char *what, const fl_nn_load_opts *o) {
    if (!o->partial && !fl__nn_names_match(s, f, what, o)) return false;
    for (int64_t i = 0; i < s->n; i++) {
        const int64_t at = fl__nn_find(s, i, f, o);
        if (at >= 0 && !fl__nn_item_fits(&s->item[i], f, at, what, o->cast)) return false;
    }
    fl_quiet(+1);
    bool ok = true;
    for (int64_t i = 0; ok && i < s->n; i++)
        ok = fl__nn_read_item(&s->item[i], f, what, fl__nn_find(s, i, f, o) >= 0);
    fl_quiet(-1);
    return ok;
}

FL_API bool fl_nn_state_read(fl_nn_state *s, fl_data_file *f, const char *what, const char *prefix,
                             bool partial) {
    const fl_nn_load_opts o = {.partial = partial, .prefix = prefix ? prefix : ""};
    return fl_given(s, "fl_nn_state_read", "the state") &&
           fl_given(f, "fl_nn_state_read", "the file") && fl__nn_state_read(s, f, what, &o);
}

/* Large tensors take over the storage of the tensor read. */
static bool fl__nn_commit_item(const fl_nn_state_item *item) {
    fl_tensor *to = item->tensor, *from = item->loaded_;
    if (!from) return true;
    if (item->host) return fl_to_host(from, item->host, (size_t)fl_numel(from) * fl_dtype_size(from->dtype));
    return fl_move_into(to, from) != NULL;
}

FL_API bool fl_nn_state_commit(fl_nn_state *s) {
    if (!fl_given(s, "fl_nn_state_commit", "the state")) return false;
    fl_quiet(+1);
    fl_scope scope = fl_scope_begin();
    bool ok = true;
    for (int64_t i = 0; ok && i < s->n; i++) ok = fl__nn_commit_item(&s->item[i]);
    fl_scope_end(&scope);
    fl_quiet(-1);
    return ok;
}

FL_API bool fl_nn_save(fl_nn_module *m, const char *path) {
    fl_nn_state s = {0};
    if (!fl_given(m, "fl_nn_save", "the module") || !fl_given(path, "fl_nn_save", "the path"))
        return false;
    const bool ok = fl_nn_state_add_module(&s, "", m) && fl_nn_state_save(&s, path, NULL, 0);
    fl_nn_state_free(&s);
    return ok;
}

FL_API bool fl_nn_load_opt(fl_nn_module *m, const char *path, fl_nn_load_opts o) {
    char what[FL_NN_PATH];
    fl_nn_state s = {0};
    if (!fl_given(m, "fl_nn_load", "the module") || !fl_given(path, "fl_nn_load", "the path"))
        return false;
    if (!o.prefix) o.prefix = "";
    snprintf(what, sizeof what, "fl_nn_load: %s", path);
    bool ok = fl_nn_state_add_module(&s, o.prefix, m);
    fl_data_file *f = ok ? fl_data_open_safetensors(path) : NULL;
    ok = f && fl__nn_state_read(&s, f, what, &o) && fl_nn_state_commit(&s);
    fl_data_close(f);
    fl_nn_state_free(&s);
    return ok;
}

#endif
#endif

/* MIT licence: see LICENSE. */
