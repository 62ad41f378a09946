/* fl/nn/module.h - modules, module trees, and the tools to write layers */
#ifndef FL_AUTOGRAD_H
#include "../../fl_autograd.h"
#endif
#ifndef FL_NN_MODULE_H
#define FL_NN_MODULE_H

#ifdef __cplusplus
extern "C" {
#endif

#define FL_NN_NAME 64  /* size of the longest name, with its terminator */
#define FL_NN_PATH 512 /* size of the longest path, with its terminator */
#define FL_VARS_MAX 8

/* A module's inputs, or its outputs. */
typedef struct fl_vars {
    int n;
    fl_var *v[FL_VARS_MAX];
} fl_vars;
#define FL_VARS(...) FL_LITERAL(fl_vars, FL_COUNT(fl_var *, __VA_ARGS__), {__VA_ARGS__})

typedef struct fl_nn_module fl_nn_module;
typedef fl_vars (*fl_nn_forward_fn)(fl_nn_module *m, fl_vars in);

/* The type (vtable) of a module; a custom layer needs only `forward`. */
typedef struct fl_nn_type {
    const char *name;         /* printed name: "Linear" */
    const char *maker;        /* name in error messages: "fl_nn_linear"; NULL -> name */
    int inputs;               /* number of inputs of forward; 0: any */
    fl_nn_forward_fn forward; /* runs in its own scope; returns n = 0 after fl_fail */
    /* The rest may be NULL. */
    void (*release)(void *data); /* releases what data refers to */
    void (*describe)(const fl_nn_module *m, char *buf, size_t size); /* writes the text in parentheses */
    void *(*state)(fl_nn_module *m, size_t *bytes); /* bytes saved with the buffers, as "_extra_state" */
    bool wide; /* fl_nn_cast to a half type leaves it in f32: weights and statistics of norms */
} fl_nn_type;

typedef struct fl_nn_param { char name[FL_NN_NAME]; fl_var *var; } fl_nn_param;
typedef struct fl_nn_buffer { char name[FL_NN_NAME]; fl_tensor *tensor; } fl_nn_buffer;
struct fl_nn_module {
    const fl_nn_type *type;
    const char *kind;      /* type->name, or the name given to fl_nn_function; a string literal */
    char name[FL_NN_NAME]; /* under the parent; "" at the root */
    bool train;
    void *data;            /* data of the type, freed with the module */
    fl_nn_module *parent, **child;
    fl_nn_param *param;    /* trained by an optimizer */
    fl_nn_buffer *buffer;  /* saved, not trained */
    int64_t n_child, n_param, n_buffer;
    /* private */
    int64_t child_cap_, param_cap_, buffer_cap_, list_n_, list_cap_;
    fl_var **list_;
};

/* A module of that type with a copy of `bytes` plain bytes of data. On failure data is released. */
FL_API fl_nn_module *fl_nn_new(const fl_nn_type *type, const void *data, size_t bytes);
/* A module made of a function, which gets `user` by fl_nn_user(m). kind: the printed name (a literal).
   release(user), if not NULL, is called when the module is freed. Children and parameters may be added. */
FL_API fl_nn_module *fl_nn_function(const char *kind, fl_nn_forward_fn forward, void *user,
                                    void (*release)(void *user));
/* The `user` of fl_nn_function; NULL for any other module. */
FL_API void *fl_nn_user(const fl_nn_module *m);
/* Adds a child and returns it; the parent owns it. name NULL: the child's index. On failure the child is
   freed. */
FL_API fl_nn_module *fl_nn_add(fl_nn_module *parent, const char *name, fl_nn_module *child);
/* Registers a parameter or buffer under that name and returns it; the module holds a reference. */
FL_API fl_var *fl_nn_add_param(fl_nn_module *m, const char *name, fl_var *p);
FL_API fl_tensor *fl_nn_add_buffer(fl_nn_module *m, const char *name, fl_tensor *t);
/* Frees the tree and removes it from its parent. NULL is allowed. */
FL_API void fl_nn_free(fl_nn_module *m);

/* Runs m on several inputs, or on one, in a scope of its own that only the results leave. Returns n = 0, or
   NULL, after an error. */
FL_API fl_vars fl_nn_forward_vars(fl_nn_module *m, fl_vars in);
FL_API fl_var *fl_nn_forward(fl_nn_module *m, fl_var *x);
/* Observes module calls of this thread: fn runs before a module's forward (out NULL) and after each
   successful one. Returns the previous watch, to be restored later; {0} stops watching. */
typedef struct fl_nn_call_hook {
    void (*fn)(fl_nn_module *m, const fl_vars *out, void *user);
    void *user;
} fl_nn_call_hook;
FL_API fl_nn_call_hook fl_nn_set_call_hook(fl_nn_call_hook watch);
FL_PRIVATE bool fl__nn_watched(void);
/* Text of a module for fl_scope_in, by which profiles and messages name its ops. */
FL_PRIVATE void fl__nn_describe(const void *of, char *buf, size_t size);

/* trees */

/* The parameters of the tree, each once, for optimizers and clipping. The array belongs to m and is valid
   until the next call after the tree changed. Thread-safe. */
FL_API fv_list fl_nn_parameters(fl_nn_module *m);
/* Number of elements of these parameters. */
FL_API int64_t fl_nn_count(fl_nn_module *m);
/* Sets training (true) or evaluation mode of the whole tree. */
FL_API void fl_nn_train(fl_nn_module *m, bool on);
/* Drops the gradients of all parameters of the tree. */
FL_API void fl_nn_zero_grad(fl_nn_module *m);
/* Lookup by path from m; NULL, without an error, if nothing has that path. */
FL_API fl_nn_module *fl_nn_find(fl_nn_module *m, const char *path);
FL_API fl_var *fl_nn_get_param(fl_nn_module *m, const char *path);
FL_API fl_tensor *fl_nn_get_buffer(fl_nn_module *m, const char *path);
/* Writes the path of a parameter of module m into buf, "" if m does not have it: for fl_tape_format. */
FL_API void fl_nn_param_path(const fl_var *param, void *m, char *buf, size_t size);
/* Visits each module's parameters, then its buffers, then its children, with paths from m; either param or
   buffer is NULL. Stops and returns false when fn returns false. */
typedef bool (*fl_nn_visit_fn)(const char *path, fl_var *param, fl_tensor *buffer, void *user);
FL_API bool fl_nn_visit_tensors(fl_nn_module *m, fl_nn_visit_fn fn, void *user);
/* Writes the tree as PyTorch prints it and returns its length, as snprintf does. */
FL_API int64_t fl_nn_format(const fl_nn_module *m, char *buf, size_t size);
/* Prints that to stdout, with a newline. */
FL_API bool fl_nn_print(const fl_nn_module *m);

/* Writing layers: fl's own layers use no more than this. */

/* For forward functions: fl_fail with "maker 'path': " as prefix. Returns n = 0. */
FL_API fl_vars fl_nn_fail(const fl_nn_module *m, const char *format, ...) FL_PRINTF(2, 3);
/* Whether dtype is a float, or 0 (the default dtype). Returns false after fl_fail, which names fn. */
FL_API bool fl_nn_dtype_ok(const char *fn, fl_dtype dtype);
/* Whether x is [n, t, dim] with t <= steps (INT64_MAX: any). Returns false after fl_nn_fail. */
FL_API bool fl_nn_sequence_ok(const fl_nn_module *m, const fl_var *x, int64_t dim, int64_t steps);
/* Parameter i in the order of registration; NULL if there are fewer (no bias). */
FL_API fl_var *fl_nn_param_at(const fl_nn_module *m, int64_t i);
/* Adds a weight of ones and a bias of zeros of that shape. Returns false after an error. */
FL_API bool fl_nn_add_affine(fl_nn_module *m, fl_shape shape, bool no_bias, fl_dtype dtype);
/* Adds a weight of that shape and a bias of `bias` elements (0: none), both U(-bound, bound). */
FL_API bool fl_nn_add_uniform(fl_nn_module *m, fl_shape weight, int64_t bias, double bound, fl_dtype dtype,
                              fl_rng *rng);
/* Per-dim settings of options: 0 repeats the dim before, a 0 in the first dim is `otherwise`. */
FL_API fl_shape fl_nn_per_dim(const int64_t *list, int dims, int64_t otherwise);
/* A maker calls fl_quiet(+1) before it makes the module, allocates parameters and buffers in a scope with
   fl_persistent(true), which tells memory managers that they are long-lived, and ends with one of these two.
   fl_nn_finish returns m if ok; else it frees m and returns NULL after an error. fl_nn_finish_with_weights
   first adds a
   weight of shape w and a bias [w[0]], both U(-1 / sqrt(fan in), 1 / sqrt(fan in)): the bound of PyTorch's
   kaiming_uniform(a = sqrt(5)). */
FL_API fl_nn_module *fl_nn_finish(fl_nn_module *m, bool ok);
FL_API fl_nn_module *fl_nn_finish_with_weights(fl_nn_module *m, fl_shape w, bool no_bias, fl_dtype dtype,
                                               fl_rng *rng);
/* Calls fn for m and all modules below it, parents first, with the path from m and a trailing dot ("" for m
   itself). Stops and returns false when fn returns false. */
typedef bool (*fl_nn_visit_modules_fn)(fl_nn_module *m, const char *prefix, void *user);
FL_API bool fl_nn_visit_modules(fl_nn_module *m, fl_nn_visit_modules_fn fn, void *user);
/* Text of describe functions: what does not fit into buf is counted but not written. */
typedef struct fl_nn_text {
    char *buf;
    size_t size;
    int64_t n; /* characters so far, written or not */
} fl_nn_text;
FL_API void fl_nn_put(fl_nn_text *t, const char *format, ...) FL_PRINTF(2, 3);
FL_API void fl_nn_put_shape(fl_nn_text *t, const fl_shape *s);                         /* (2, 3) */
FL_API void fl_nn_put_pair(fl_nn_text *t, const char *name, int64_t a, int64_t b);     /* , name=(2, 3) */
#define FL_NN_SHAPE 192 /* buffer size for the text of a shape */
FL_API const char *fl_nn_shape_text(const fl_var *x, char *buf);

#ifdef __cplusplus
}
#endif
#endif /* FL_NN_MODULE_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_NN_MODULE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_NN_MODULE_IMPL
#define FL_NN_MODULE_IMPL
#include "../ops/random.h"
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* modules: making and freeing */

FL_API fl_nn_module *fl_nn_new(const fl_nn_type *type, const void *data, size_t bytes) {
    if (!type || !type->forward) return fl_err_null("fl_nn_new: the type is NULL, or has no forward");
    fl_nn_module *m = fl_heap_alloc(sizeof *m);
    void *copy = m && bytes ? fl_heap_alloc(bytes) : NULL;
    if (!m || (bytes && !copy)) {
        fl_heap_free(m);
        if (type->release) type->release((void *)data);
        return fl_raise();
    }
    if (bytes) memcpy(copy, data, bytes);
    m->type = type;
    m->kind = type->name;
    m->data = copy;
    m->train = true;
    return m;
}

FL_API void fl_nn_free(fl_nn_module *m) {
    if (!m || fl_is_freed(m, "fl_nn_free", "the module")) return;
    fl_nn_module *p = m->parent;
    if (p) {
        int64_t i = 0;
        while (p->child[i] != m) i++;
        memmove(p->child + i, p->child + i + 1, (size_t)(p->n_child - i - 1) * sizeof *p->child);
        p->n_child--;
    }
    while (m->n_child) fl_nn_free(m->child[m->n_child - 1]);
    for (int64_t i = 0; i < m->n_param; i++) fv_drop(m->param[i].var);
    for (int64_t i = 0; i < m->n_buffer; i++) fl_drop(m->buffer[i].tensor);
    if (m->type->release) m->type->release(m->data);
    fl_heap_free(m->child);
    fl_heap_free(m->param);
    fl_heap_free(m->buffer);
    fl_heap_free(m->list_);
    fl_heap_free(m->data);
    fl_object_free(m, m->kind, m->name);
}

typedef struct fl__nn_function {
    fl_nn_forward_fn forward;
    void *user;
    void (*release)(void *user);
} fl__nn_function;

static fl_vars fl__nn_function_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_function *f = m->data;
    return f->forward(m, in);
}

static void fl__nn_function_release(void *data) {
    const fl__nn_function *f = data;
    if (f->release) f->release(f->user);
}

static const fl_nn_type fl__nn_function_type = {
    .name = "Function",
    .forward = fl__nn_function_forward,
    .release = fl__nn_function_release,
};

FL_API fl_nn_module *fl_nn_function(const char *kind, fl_nn_forward_fn forward, void *user,
                                    void (*release)(void *user)) {
    const fl__nn_function f = {forward, user, release};
    if (!forward) {
        fl_fail("fl_nn_function: forward is NULL");
        if (release) release(user);
        return fl_raise();
    }
    fl_nn_module *m = fl_nn_new(&fl__nn_function_type, &f, sizeof f);
    if (m && kind) m->kind = kind;
    return m;
}

FL_API void *fl_nn_user(const fl_nn_module *m) {
    if (!m || m->type != &fl__nn_function_type) return NULL;
    return ((const fl__nn_function *)m->data)->user;
}

/* modules: names */

/* Writes text at buf + n, shortened to fit; returns the length of all. */
static size_t fl__nn_append(char *buf, size_t size, size_t n, const char *text) {
    const size_t length = strlen(text), left = size > n + 1 ? size - n - 1 : 0;
    const size_t fits = length < left ? length : left;
    memcpy(buf + n, text, fits);
    buf[n + fits] = 0;
    return n + fits;
}

/* Appends the path of m from its root; returns the length of all. */
static size_t fl__nn_path(const fl_nn_module *m, char *buf, size_t size, size_t n) {
    const size_t above = m->parent ? fl__nn_path(m->parent, buf, size, n) : n;
    return fl__nn_append(buf, size, above > n ? fl__nn_append(buf, size, above, ".") : above, m->name);
}

/* "fl_nn_linear 'head'". Without printf: deferred calls copy the text whenever another module runs. */
FL_PRIVATE void fl__nn_describe(const void *of, char *buf, size_t size) {
    const fl_nn_module *m = of;
    size_t n = fl__nn_append(buf, size, 0, m->type->maker ? m->type->maker : m->kind);
    if (!m->parent) return;
    n = fl__nn_append(buf, size, n, " '");
    fl__nn_append(buf, size, fl__nn_path(m, buf, size, n), "'");
}

FL_API fl_vars fl_nn_fail(const fl_nn_module *m, const char *format, ...) {
    if (!fl_given(m, "fl_nn_fail", "the module") ||
        !fl_given(format, "fl_nn_fail", "the format")) return (fl_vars){0};
    char label[FL_NN_PATH], text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fl__nn_describe(m, label, sizeof label);
    fl_fail("%s: %s", label, text);
    return (fl_vars){0};
}

static int64_t fl__nn_child_index(const fl_nn_module *m, const char *name, size_t len) {
    for (int64_t i = 0; i < m->n_child; i++)
        if (strlen(m->child[i]->name) == len && !memcmp(m->child[i]->name, name, len)) return i;
    return -1;
}

static int64_t fl__nn_param_index(const fl_nn_module *m, const char *name) {
    for (int64_t i = 0; i < m->n_param; i++)
        if (!strcmp(m->param[i].name, name)) return i;
    return -1;
}

static int64_t fl__nn_buffer_index(const fl_nn_module *m, const char *name) {
    for (int64_t i = 0; i < m->n_buffer; i++)
        if (!strcmp(m->buffer[i].name, name)) return i;
    return -1;
}

/* Checks that the name can be part of a path and that no member of m has it. */
static bool fl__nn_name_free(const fl_nn_module *m, const char *fn, const char *name) {
    if (!name || !*name || strlen(name) >= FL_NN_NAME || strchr(name, '.'))
        return fl_fail("%s: name '%s' is not valid: expected 1 to %d characters without dots", fn,
                       name ? name : "", FL_NN_NAME - 1);
    if (fl__nn_child_index(m, name, strlen(name)) >= 0 || fl__nn_param_index(m, name) >= 0 ||
        fl__nn_buffer_index(m, name) >= 0)
        return fl_fail("%s: the module already has a '%s'", fn, name);
    return true;
}

static bool fl__nn_check_add(fl_nn_module *parent, const char *name, fl_nn_module *child) {
    if (!fl_given(parent, "fl_nn_add", "the parent") ||
        !fl_given(child, "fl_nn_add", "the child"))
        return false;
    for (const fl_nn_module *p = parent; p; p = p->parent)
        if (p == child) return fl_fail("fl_nn_add: '%s' is an ancestor of its new parent", name ? name : "");
    if (child->parent)
        return fl_fail("fl_nn_add: '%s' already belongs to another module", name ? name : child->name);
    return true;
}

FL_API fl_nn_module *fl_nn_add(fl_nn_module *parent, const char *name, fl_nn_module *child) {
    const bool mine = fl__nn_check_add(parent, name, child);
    char number[24];
    if (mine && !name) {
        snprintf(number, sizeof number, "%" PRId64, parent->n_child);
        name = number;
    }
    if (mine && fl__nn_name_free(parent, "fl_nn_add", name) &&
        fl_heap_grow(&parent->child, &parent->child_cap_, parent->n_child + 1, sizeof *parent->child)) {
        snprintf(child->name, FL_NN_NAME, "%s", name);
        child->parent = parent;
        return parent->child[parent->n_child++] = child;
    }
    if (mine || (child && !parent && !child->parent)) fl_nn_free(child);
    return fl_raise();
}

FL_API fl_var *fl_nn_add_param(fl_nn_module *m, const char *name, fl_var *p) {
    if (!fl_given(m, "fl_nn_add_param", "the module") ||
        !fl_given(p, "fl_nn_add_param", "the parameter") ||
        !fl__nn_name_free(m, "fl_nn_add_param", name) ||
        !fl_heap_grow(&m->param, &m->param_cap_, m->n_param + 1, sizeof *m->param))
        return fl_raise();
    fl_nn_param *slot = &m->param[m->n_param++];
    snprintf(slot->name, FL_NN_NAME, "%s", name);
    return slot->var = fv_keep(p);
}

FL_API fl_tensor *fl_nn_add_buffer(fl_nn_module *m, const char *name, fl_tensor *t) {
    if (!fl_given(m, "fl_nn_add_buffer", "the module") ||
        !fl_given(t, "fl_nn_add_buffer", "the tensor") ||
        !fl__nn_name_free(m, "fl_nn_add_buffer", name) ||
        !fl_heap_grow(&m->buffer, &m->buffer_cap_, m->n_buffer + 1, sizeof *m->buffer))
        return fl_raise();
    fl_nn_buffer *slot = &m->buffer[m->n_buffer++];
    snprintf(slot->name, FL_NN_NAME, "%s", name);
    return slot->tensor = fl_keep(t);
}

/* modules: calls */

static bool fl__nn_inputs_ok(const fl_nn_module *m, const fl_vars *in) {
    if (!fl_given(m, "fl_nn_forward", "the module")) return false;
    const int want = m->type->inputs;
    if (in->n < 0 || in->n > FL_VARS_MAX || (want && in->n != want)) {
        fl_nn_fail(m, "got %d inputs, expected %d", in->n, want ? want : FL_VARS_MAX);
        return false;
    }
    for (int i = 0; i < in->n; i++) {
        if (in->v[i]) continue;
        if (!fl_error()) fl_nn_fail(m, "input %d is NULL", i);
        return false;
    }
    return true;
}

/* Checks that all results are there; reports an error unless one is pending. */
static bool fl__nn_results_ok(const fl_nn_module *m, const fl_vars *out) {
    bool ok = out->n > 0 && out->n <= FL_VARS_MAX;
    for (int i = 0; ok && i < out->n; i++) ok = out->v[i] != NULL;
    if (!ok && !fl_error()) fl_nn_fail(m, "forward returned no result");
    return ok;
}

/* Hands the references to the innermost scope; on failure they are dropped. */
static bool fl__nn_adopt(fl_vars *vars) {
    bool ok = true;
    for (int i = 0; i < vars->n; i++) ok = fl_scope_adopt(&vars->v[i]->obj) && ok;
    return ok;
}

static _Thread_local fl_nn_call_hook fl__nn_watch;

FL_PRIVATE bool fl__nn_watched(void) { return fl__nn_watch.fn != NULL; }

FL_API fl_nn_call_hook fl_nn_set_call_hook(fl_nn_call_hook watch) {
    const fl_nn_call_hook before = fl__nn_watch;
    fl__nn_watch = watch;
    return before;
}

FL_API fl_vars fl_nn_forward_vars(fl_nn_module *m, fl_vars in) {
    fl_vars out = {0};
    bool ok = fl__nn_inputs_ok(m, &in);
    if (ok) {
        fl_scope s = fl_scope_in(m, fl__nn_describe);
        if (fl__nn_watch.fn) fl__nn_watch.fn(m, NULL, fl__nn_watch.user);
        out = m->type->forward(m, in);
        ok = fl__nn_results_ok(m, &out);
        if (ok && fl__nn_watch.fn) fl__nn_watch.fn(m, &out, fl__nn_watch.user);
        for (int i = out.n; ok && i-- > 0;) fl_obj_steal(&out.v[i]->obj);
        fl_scope_end(&s);
        if (ok) ok = fl__nn_adopt(&out);
    }
    if (ok) return out;
    fl_raise();
    return (fl_vars){0};
}

FL_API fl_var *fl_nn_forward(fl_nn_module *m, fl_var *x) {
    return fl_nn_forward_vars(m, FL_VARS(x)).v[0];
}

/* trees */

static bool fl__nn_listed(const fl_nn_module *root, const fl_var *p) {
    for (int64_t i = 0; i < root->list_n_; i++)
        if (root->list_[i] == p) return true;
    return false;
}

/* Writes only entries that differ from the last list: another thread may be reading it. */
static bool fl__nn_list(fl_nn_module *root, const fl_nn_module *m) {
    for (int64_t i = 0; i < m->n_param; i++) {
        fl_var *p = m->param[i].var;
        if (fl__nn_listed(root, p)) continue;
        const int64_t cap = root->list_cap_;
        if (!fl_heap_grow(&root->list_, &root->list_cap_, root->list_n_ + 1, sizeof *root->list_))
            return false;
        for (int64_t k = cap; k < root->list_cap_; k++) root->list_[k] = NULL;
        if (root->list_[root->list_n_] != p) root->list_[root->list_n_] = p;
        root->list_n_++;
    }
    for (int64_t i = 0; i < m->n_child; i++)
        if (!fl__nn_list(root, m->child[i])) return false;
    return true;
}

FL_API fv_list fl_nn_parameters(fl_nn_module *m) {
    if (fl_given(m, "fl_nn_parameters", "the module")) {
        static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
        pthread_mutex_lock(&lock);
        m->list_n_ = 0;
        const fv_list all = {fl__nn_list(m, m) ? (int)m->list_n_ : -1, m->list_};
        pthread_mutex_unlock(&lock);
        if (all.n >= 0) return all;
    }
    fl_raise();
    return FV_NONE;
}

FL_API int64_t fl_nn_count(fl_nn_module *m) {
    const fv_list p = fl_nn_parameters(m);
    int64_t n = 0;
    for (int i = 0; i < p.n; i++) n += fl_numel(fv_value(p.v[i]));
    return n;
}

FL_API void fl_nn_train(fl_nn_module *m, bool on) {
    if (!m || fl_is_freed(m, "fl_nn_train", "the module")) return;
    m->train = on;
    for (int64_t i = 0; i < m->n_child; i++) fl_nn_train(m->child[i], on);
}

FL_API void fl_nn_zero_grad(fl_nn_module *m) {
    if (!m) return;
    for (int64_t i = 0; i < m->n_param; i++) fv_zero_grad(m->param[i].var);
    for (int64_t i = 0; i < m->n_child; i++) fl_nn_zero_grad(m->child[i]);
}

typedef struct fl__nn_name_query {
    const fl_var *param;
    char *buf;
    size_t size;
} fl__nn_name_query;

static bool fl__nn_match_param(const char *path, fl_var *param, fl_tensor *buffer, void *user) {
    const fl__nn_name_query *w = user;
    (void)buffer;
    if (!param || param != w->param) return true;
    snprintf(w->buf, w->size, "%s", path);
    return false;
}

FL_API void fl_nn_param_path(const fl_var *param, void *m, char *buf, size_t size) {
    if (!fl_given(buf, "fl_nn_param_path", "the buffer")) return;
    fl__nn_name_query w = {param, buf, size};
    *buf = 0;
    fl_nn_visit_tensors(m, fl__nn_match_param, &w);
}

/* Finds the module that the last name of path belongs to; *last is that name. */
static fl_nn_module *fl__nn_parent_of(fl_nn_module *m, const char *path, const char **last) {
    if (!path) return NULL;
    for (const char *dot; m && (dot = strchr(path, '.')); path = dot + 1) {
        int64_t i = fl__nn_child_index(m, path, (size_t)(dot - path));
        m = i < 0 ? NULL : m->child[i];
    }
    *last = path;
    return m;
}

FL_API fl_nn_module *fl_nn_find(fl_nn_module *m, const char *path) {
    if (m && path && !*path) return m;
    m = fl__nn_parent_of(m, path, &path);
    const int64_t i = m ? fl__nn_child_index(m, path, strlen(path)) : -1;
    return i < 0 ? NULL : m->child[i];
}

FL_API fl_var *fl_nn_get_param(fl_nn_module *m, const char *path) {
    m = fl__nn_parent_of(m, path, &path);
    const int64_t i = m ? fl__nn_param_index(m, path) : -1;
    return i < 0 ? NULL : m->param[i].var;
}

FL_API fl_tensor *fl_nn_get_buffer(fl_nn_module *m, const char *path) {
    m = fl__nn_parent_of(m, path, &path);
    const int64_t i = m ? fl__nn_buffer_index(m, path) : -1;
    return i < 0 ? NULL : m->buffer[i].tensor;
}

/* fl_nn_visit_modules from m on; the first len bytes of path are its path and a dot. */
static bool fl__nn_each_from(fl_nn_module *m, char *path, size_t len, fl_nn_visit_modules_fn fn, void *user) {
    if (!fn(m, path, user)) return false;
    for (int64_t i = 0; i < m->n_child; i++) {
        const size_t n = strlen(m->child[i]->name) + 1;
        if (len + n + FL_NN_NAME > FL_NN_PATH)
            return fl_fail("fl_nn: a path below '%s' is longer than %d characters", path, FL_NN_PATH - 1);
        snprintf(path + len, FL_NN_PATH - len, "%s.", m->child[i]->name);
        const bool ok = fl__nn_each_from(m->child[i], path, len + n, fn, user);
        path[len] = '\0';
        if (!ok) return false;
    }
    return true;
}

FL_API bool fl_nn_visit_modules(fl_nn_module *m, fl_nn_visit_modules_fn fn, void *user) {
    char path[FL_NN_PATH] = "";
    return fl_given(m, "fl_nn_visit_modules", "the module") && fl__nn_each_from(m, path, 0, fn, user);
}

typedef struct fl__nn_visitor {
    fl_nn_visit_fn fn;
    void *user;
} fl__nn_visitor;

static bool fl__nn_visit(fl_nn_module *m, const char *prefix, void *user) {
    const fl__nn_visitor *v = user;
    char path[FL_NN_PATH];
    for (int64_t i = 0; i < m->n_param; i++) {
        snprintf(path, sizeof path, "%s%s", prefix, m->param[i].name);
        if (!v->fn(path, m->param[i].var, NULL, v->user)) return false;
    }
    for (int64_t i = 0; i < m->n_buffer; i++) {
        snprintf(path, sizeof path, "%s%s", prefix, m->buffer[i].name);
        if (!v->fn(path, NULL, m->buffer[i].tensor, v->user)) return false;
    }
    return true;
}

FL_API bool fl_nn_visit_tensors(fl_nn_module *m, fl_nn_visit_fn fn, void *user) {
    fl__nn_visitor v = {fn, user};
    return fl_given(m, "fl_nn_visit_tensors", "the module") &&
           (fn || fl_fail("fl_nn_visit_tensors: fn is NULL")) &&
           fl_nn_visit_modules(m, fl__nn_visit, &v);
}

/* trees: printing */

FL_API void fl_nn_put(fl_nn_text *t, const char *format, ...) {
    if (!fl_given(t, "fl_nn_put", "the text") || !fl_given(format, "fl_nn_put", "the format")) return;
    fl_strbuf lines = {.buf = t->buf, .size = t->size, .n = t->n};
    va_list args;
    va_start(args, format);
    fl_strbuf_vprintf(&lines, format, args);
    va_end(args);
    t->n = lines.n;
}

static void fl__nn_put_module(fl_nn_text *t, const fl_nn_module *m, int indent) {
    char text[256] = "";
    if (m->type->describe) m->type->describe(m, text, sizeof text);
    fl_nn_put(t, "%s(%s", m->kind, text);
    for (int64_t i = 0; i < m->n_child; i++) {
        fl_nn_put(t, "\n%*s(%s): ", indent + 2, "", m->child[i]->name);
        fl__nn_put_module(t, m->child[i], indent + 2);
    }
    if (m->n_child) fl_nn_put(t, "\n%*s", indent, "");
    fl_nn_put(t, ")");
}

FL_API int64_t fl_nn_format(const fl_nn_module *m, char *buf, size_t size) {
    fl_nn_text t = {buf, size, 0};
    if (size) buf[0] = '\0';
    if (m) fl__nn_put_module(&t, m, 0);
    return t.n;
}

FL_API bool fl_nn_print(const fl_nn_module *m) {
    const size_t n = (size_t)fl_nn_format(m, NULL, 0) + 1;
    char *text = fl_heap_alloc(n);
    if (!text) return false;
    fl_nn_format(m, text, n);
    const bool ok = puts(text) >= 0;
    fl_heap_free(text);
    return ok ? true : fl_fail("fl_nn_print: cannot write to stdout");
}

FL_API void fl_nn_put_shape(fl_nn_text *t, const fl_shape *s) {
    if (!fl_given(t, "fl_nn_put_shape", "the text") || !fl_given(s, "fl_nn_put_shape", "the shape")) return;
    fl_nn_put(t, "(");
    for (int i = 0; i < s->ndim; i++) fl_nn_put(t, "%s%" PRId64, i ? ", " : "", s->dim[i]);
    fl_nn_put(t, s->ndim == 1 ? ",)" : ")");
}

FL_API void fl_nn_put_pair(fl_nn_text *t, const char *name, int64_t a, int64_t b) {
    if (!fl_given(t, "fl_nn_put_pair", "the text") || !fl_given(name, "fl_nn_put_pair", "the name")) return;
    fl_nn_put(t, "%s%s=(%" PRId64 ", %" PRId64 ")", t->n ? ", " : "", name, a, b);
}

/* tools to write layers */

FL_API const char *fl_nn_shape_text(const fl_var *x, char *buf) {
    if (!fl_given(buf, "fl_nn_shape_text", "the buffer")) return NULL;
    return fl_shape_text(fl_shape_of(fv_value(x)), buf, FL_NN_SHAPE);
}

FL_API fl_var *fl_nn_param_at(const fl_nn_module *m, int64_t i) {
    if (!fl_given(m, "fl_nn_param_at", "the module")) return NULL;
    return i >= 0 && i < m->n_param ? m->param[i].var : NULL;
}

FL_API bool fl_nn_dtype_ok(const char *fn, fl_dtype dtype) {
    return dtype == FL_DTYPE_NONE || fl_dtype_is_float(dtype) ||
           fl_fail("%s: parameters must be a float dtype, got %s", fn, fl_dtype_name(dtype));
}

FL_API bool fl_nn_sequence_ok(const fl_nn_module *m, const fl_var *x, int64_t dim, int64_t steps) {
    if (!fl_given(m, "fl_nn_sequence_ok", "the module") ||
        !fl_given(x, "fl_nn_sequence_ok", "the operand")) return false;
    const fl_tensor *t = fv_value(x);
    if (t->ndim == 3 && t->shape[2] == dim && t->shape[1] <= steps) return true;
    char text[FL_NN_SHAPE], most[40] = "";
    if (steps != INT64_MAX) snprintf(most, sizeof most, " of at most %" PRId64 " steps", steps);
    fl_nn_fail(m, "input %s, expected [n, t, %" PRId64 "]%s", fl_nn_shape_text(x, text), dim, most);
    return false;
}

FL_API bool fl_nn_add_affine(fl_nn_module *m, fl_shape shape, bool no_bias, fl_dtype dtype) {
    fl_scope s = fl_scope_begin();
    fl_persistent(true);
    const bool ok = fl_nn_add_param(m, "weight", fv_param(fl_ones(shape, dtype))) &&
                    (no_bias || fl_nn_add_param(m, "bias", fv_param(fl_zeros(shape, dtype))));
    fl_scope_end(&s);
    return ok;
}

FL_API fl_nn_module *fl_nn_finish(fl_nn_module *m, bool ok) {
    fl_quiet(-1);
    if (ok) return m;
    fl_nn_free(m);
    return fl_raise();
}

FL_API bool fl_nn_add_uniform(fl_nn_module *m, fl_shape weight, int64_t bias, double bound, fl_dtype dtype,
                              fl_rng *rng) {
    fl_scope s = fl_scope_begin();
    fl_persistent(true);
    const fl_shape b = FL_SHAPE(bias);
    const bool ok =
        fl_nn_add_param(m, "weight", fv_param(fl_uniform(weight, -bound, bound, dtype, rng))) &&
        (!bias || fl_nn_add_param(m, "bias", fv_param(fl_uniform(b, -bound, bound, dtype, rng))));
    fl_scope_end(&s);
    return ok;
}

FL_API fl_nn_module *fl_nn_finish_with_weights(fl_nn_module *m, fl_shape w, bool no_bias, fl_dtype dtype,
                                               fl_rng *rng) {
    double fan_in = 1;
    for (int i = 1; i < w.ndim; i++) fan_in *= (double)w.dim[i];
    return fl_nn_finish(m, m &&
                        fl_nn_add_uniform(m, w, no_bias ? 0 : w.dim[0], 1 / sqrt(fan_in), dtype, rng));
}

FL_API fl_shape fl_nn_per_dim(const int64_t *list, int dims, int64_t otherwise) {
    fl_shape s = {dims, {0}};
    for (int i = 0; i < dims; i++)
        s.dim[i] = i && !list[i] ? s.dim[i - 1] : fl_option_int(list[i], otherwise);
    return s;
}

#endif
#endif

/* MIT licence: see LICENSE. */
