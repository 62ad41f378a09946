/* fl/nn/container.h - containers: Sequential, ModuleList, residual blocks */
#ifndef FL_NN_CONTAINER_H
#define FL_NN_CONTAINER_H
#include "activation.h"
#include "conv.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Containers own their children; if construction fails, the children are freed. fl_nn_add adds more. */

/* Each child's results are the next one's inputs. */
#define fl_nn_sequential(...) \
    fl_nn_sequential_of(FL_COUNT(fl_nn_module *, __VA_ARGS__), FL_ARRAY(fl_nn_module *, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_sequential_of(int n, fl_nn_module *const *children);
/* Whether m was made by fl_nn_sequential. */
FL_API bool fl_nn_is_sequential(const fl_nn_module *m);
/* Runs n modules in sequence, as Sequential does, for custom forward functions. Unless calls are watched, a
   2-d convolution is fused with a ReLU that follows it and, while gradients are off and it is frozen
   (fl_nn_freeze), with a batch norm between them. */
FL_API fl_vars fl_nn_run_sequence(fl_nn_module *const *m, int64_t n, fl_vars in);

/* Holds modules for a custom forward function, which calls m->child[i]; calling the list itself is an error
   (PyTorch's ModuleList). */
#define fl_nn_module_list(...) \
    fl_nn_module_list_of(FL_COUNT(fl_nn_module *, __VA_ARGS__), FL_ARRAY(fl_nn_module *, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_module_list_of(int n, fl_nn_module *const *children);

/* A sequence of stages, each of one input and one result, with shortcuts (Flashlight's Residual). */
#define fl_nn_residual(...) \
    fl_nn_residual_of(FL_COUNT(fl_nn_module *, __VA_ARGS__), FL_ARRAY(fl_nn_module *, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_residual_of(int n, fl_nn_module *const *children);
/* Adds the result of stage `from` (NULL: the input of the whole) to the input of the later stage `to` (NULL:
   to the result of the whole), optionally through `projection`, which becomes the child `name` but not a
   stage. y = x + f(x): fl_nn_shortcut(m, NULL, NULL, NULL, NULL). On failure projection is freed. */
FL_API bool fl_nn_shortcut(fl_nn_module *m, const char *from, const char *to, const char *name,
                           fl_nn_module *projection);

#ifdef __cplusplus
}
#endif
#endif /* FL_NN_CONTAINER_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_NN_CONTAINER) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_NN_CONTAINER_IMPL
#define FL_NN_CONTAINER_IMPL
#include "../ops/elementwise.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- sequences and lists ---- */

/* Values held by the scope through this one object, so that they can be released before the scope ends. */
typedef struct fl__nn_held {
    fl_obj obj;
    fl_vars vars;
} fl__nn_held;

static void fl__nn_drop_vars(fl_vars vars) {
    for (int i = 0; i < vars.n; i++) fv_drop(vars.v[i]);
}

static void fl__nn_held_drop(fl_obj *o) {
    fl__nn_drop_vars(((fl__nn_held *)(void *)o)->vars);
    fl_obj_free(o);
}

/* Runs the longest fusible prefix of the n modules as one op; returns its number of modules, 0 if none. */
static int64_t fl__nn_run_fused(fl_nn_module *const *m, int64_t n, fl_vars *in) {
    if (n < 2 || in->n != 1 || !m[0] || !in->v[0] || !fl__nn_conv_can_fuse(m[0], NULL)) return 0;
    const fl_nn_module *norm = fl__nn_conv_can_fuse(m[0], m[1]) ? m[1] : NULL;
    const int64_t ran = norm ? 2 : 1;
    const bool relu = ran < n && fl_nn_activation_of(m[ran]) == fv_relu;
    if (ran + relu == 1) return 0;
    fl_var *y = fl__nn_conv_fused(m[0], norm, relu, in->v[0]);
    *in = y ? FL_VARS(y) : (fl_vars){0};
    return ran + relu;
}

/* A layer's output is released as soon as the next layer has run, unless its backward needs it. */
FL_API fl_vars fl_nn_run_sequence(fl_nn_module *const *m, int64_t n, fl_vars in) {
    if (!fl_given(m, "fl_nn_run_sequence", "the list")) return fl_raise(), (fl_vars){0};
    fl__nn_held *held = fl_obj_new(sizeof *held, fl__nn_held_drop);
    if (!held || !fl_scope_adopt(&held->obj)) return (fl_vars){0};
    for (int64_t i = 0, ran; i < n && in.n; i += ran) {
        const fl_vars last = held->vars;
        fl_scope s = fl_scope_begin();
        ran = fl__nn_run_fused(m + i, n - i, &in);
        if (!ran) in = fl_nn_forward_vars(m[i], in), ran = 1;
        for (int k = in.n; k-- > 0;) fl_obj_steal(&in.v[k]->obj);
        held->vars = in;
        fl_scope_end(&s);
        fl__nn_drop_vars(last);
    }
    return in;
}

static fl_vars fl__nn_sequential_forward(fl_nn_module *m, fl_vars in) {
    return m->n_child ? fl_nn_run_sequence(m->child, m->n_child, in) : in;
}

static const fl_nn_type fl__nn_sequential_type = {.name = "Sequential", .maker = "fl_nn_sequential",
                                                  .forward = fl__nn_sequential_forward};

/* A container of that type, with a copy of its data. */
static fl_nn_module *fl__nn_container_new(const fl_nn_type *type, const void *data, size_t bytes, int n,
                                          fl_nn_module *const *children) {
    fl_quiet(+1);
    fl_nn_module *m = fl_nn_new(type, data, bytes);
    bool ok = m != NULL;
    for (int i = 0; i < n; i++) {
        if (ok) ok = fl_nn_add(m, NULL, children[i]) != NULL;
        else if (children[i] && !children[i]->parent) fl_nn_free(children[i]);
    }
    return fl_nn_finish(m, ok);
}

FL_API fl_nn_module *fl_nn_sequential_of(int n, fl_nn_module *const *children) {
    return fl__nn_container_new(&fl__nn_sequential_type, NULL, 0, n, children);
}

FL_API bool fl_nn_is_sequential(const fl_nn_module *m) {
    return m && m->type == &fl__nn_sequential_type;
}

static fl_vars fl__nn_list_forward(fl_nn_module *m, fl_vars in) {
    (void)in;
    return fl_nn_fail(m, "a list has no forward: call its %" PRId64 " children instead", m->n_child);
}

static const fl_nn_type fl__nn_list_type = {.name = "ModuleList", .maker = "fl_nn_module_list",
                                            .forward = fl__nn_list_forward};

FL_API fl_nn_module *fl_nn_module_list_of(int n, fl_nn_module *const *children) {
    return fl__nn_container_new(&fl__nn_list_type, NULL, 0, n, children);
}

/* ---- sequences with shortcuts ---- */

typedef struct fl__nn_shortcut {
    char from[FL_NN_NAME], to[FL_NN_NAME], projection[FL_NN_NAME]; /* "": input, result, none */
} fl__nn_shortcut;

typedef struct fl__nn_residual {
    fl__nn_shortcut *cut;
    int64_t n, cap;
} fl__nn_residual;

static void fl__nn_residual_release(void *data) {
    fl_heap_free(((fl__nn_residual *)data)->cut);
}

static bool fl__nn_is_projection(const fl__nn_residual *r, const char *name) {
    for (int64_t i = 0; i < r->n; i++)
        if (!strcmp(r->cut[i].projection, name)) return true;
    return false;
}

/* The output of the stage of that name: outputs[0] is the input, outputs[1 + i] the output of child i. */
static fl_var *fl__nn_output_of(const fl_nn_module *m, fl_var *const *outputs, const char *name) {
    for (int64_t i = 0; *name && i < m->n_child; i++)
        if (!strcmp(m->child[i]->name, name)) return outputs[1 + i];
    return *name ? NULL : outputs[0];
}

/* Adds all shortcuts that end at stage `to` to x. */
static fl_var *fl__nn_add_shortcuts(fl_nn_module *m, fl_var *const *outputs, const char *to, fl_var *x) {
    const fl__nn_residual *r = m->data;
    for (int64_t i = 0; x && i < r->n; i++) {
        const fl__nn_shortcut *cut = &r->cut[i];
        if (strcmp(cut->to, to)) continue;
        fl_var *y = fl__nn_output_of(m, outputs, cut->from);
        if (y && *cut->projection) y = fl_nn_forward(fl_nn_find(m, cut->projection), y);
        if (y && !fl_same_shape(fv_value(x), fv_value(y))) {
            char a[FL_NN_SHAPE], b[FL_NN_SHAPE];
            fl_nn_fail(m, "shortcut %s from %s%s does not match %s at %s%s", fl_nn_shape_text(y, a),
                       *cut->from ? "stage " : "the input", cut->from, fl_nn_shape_text(x, b),
                       *to ? "stage " : "the result", to);
            y = NULL;
        }
        x = y ? fv_add(x, y) : NULL;
    }
    return x;
}

static fl_vars fl__nn_residual_forward(fl_nn_module *m, fl_vars in) {
    fl_var *x = in.v[0], **outputs = fl_heap_alloc((size_t)(m->n_child + 1) * sizeof *outputs);
    if (!outputs) return (fl_vars){0};
    outputs[0] = x;
    for (int64_t i = 0; x && i < m->n_child; i++) {
        if (fl__nn_is_projection(m->data, m->child[i]->name)) continue;
        x = fl__nn_add_shortcuts(m, outputs, m->child[i]->name, x);
        outputs[1 + i] = x = x ? fl_nn_forward(m->child[i], x) : NULL;
    }
    x = fl__nn_add_shortcuts(m, outputs, "", x);
    fl_heap_free(outputs);
    return FL_VARS(x);
}

static void fl__nn_residual_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_residual *r = m->data;
    fl_nn_text t = {buf, size, 0};
    for (int64_t i = 0; i < r->n; i++)
        fl_nn_put(&t, "%s%s to %s%s%s", i ? ", " : "", *r->cut[i].from ? r->cut[i].from : "input",
                  *r->cut[i].to ? r->cut[i].to : "result", *r->cut[i].projection ? " by " : "",
                  r->cut[i].projection);
}

static const fl_nn_type fl__nn_residual_type = {.name = "Residual", .maker = "fl_nn_residual", .inputs = 1,
                                                .forward = fl__nn_residual_forward,
                                                .release = fl__nn_residual_release,
                                                .describe = fl__nn_residual_describe};

FL_API fl_nn_module *fl_nn_residual_of(int n, fl_nn_module *const *children) {
    return fl__nn_container_new(&fl__nn_residual_type, &(fl__nn_residual){0}, sizeof(fl__nn_residual), n,
                                children);
}

/* Index of a stage. Without a name: -1, or for the result the number of children (`otherwise`). -2 if there
   is no such stage. */
static int64_t fl__nn_stage(const fl_nn_module *m, const char *name, int64_t otherwise) {
    if (!name) return otherwise;
    for (int64_t i = 0; i < m->n_child; i++)
        if (!strcmp(m->child[i]->name, name)) return fl__nn_is_projection(m->data, name) ? -2 : i;
    return -2;
}

FL_API bool fl_nn_shortcut(fl_nn_module *m, const char *from, const char *to, const char *name,
                           fl_nn_module *projection) {
    const bool is = fl_given(m, "fl_nn_shortcut", "the module") && m->type == &fl__nn_residual_type;
    const int64_t a = is ? fl__nn_stage(m, from, -1) : -2, b = is ? fl__nn_stage(m, to, m->n_child) : -2;
    fl__nn_residual *r = is ? m->data : NULL;
    fl__nn_shortcut cut = {{0}, {0}, {0}};
    if (a == -2 || b <= a || (projection && !name)) {
        if (!fl_error())
            fl_fail("fl_nn_shortcut: from '%s' to '%s' of a %s: expected a stage and a later one of a "
                    "Residual%s",
                    from ? from : "", to ? to : "", m->kind, projection ? ", and the projection's name" : "");
        if (projection && !projection->parent) fl_nn_free(projection);
        return fl_raise() != NULL;
    }
    if (!fl_heap_grow(&r->cut, &r->cap, r->n + 1, sizeof *r->cut)) {
        if (projection && !projection->parent) fl_nn_free(projection);
        return fl_raise() != NULL;
    }
    if (projection && !fl_nn_add(m, name, projection)) return false;
    snprintf(cut.from, FL_NN_NAME, "%s", from ? from : "");
    snprintf(cut.to, FL_NN_NAME, "%s", to ? to : "");
    snprintf(cut.projection, FL_NN_NAME, "%s", projection ? name : "");
    r->cut[r->n++] = cut;
    return true;
}

#endif
#endif

/* MIT licence: see LICENSE. */
