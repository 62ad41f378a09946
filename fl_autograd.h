/* fl_autograd.h - variables and the tape: reverse-mode differentiation over the public tensor ops

   A fl_var is a value, its gradient and the node that made it. fv_ functions run the fl_ op of the
   same name and, when an operand requires a gradient, record a node. fl_backward walks the nodes in
   reverse and frees them as it goes.

   >>example
    #define FL_IMPLEMENTATION
    #include "fl_autograd.h"
    static void cos_back(fl_node *n, fl_var *dy) {
        fv_add_grad(n, 0, fv_neg(fv_mul(dy, fv_sin(fv_saved(n, 0)))));
    }
    static fl_var *my_cos(fl_var *x) {
        return fv_record(fl_cos(fv_value(x)), cos_back, FV_IN(x), FV_SAVE(x));
    }
    int main(void) {
        fl_scope s = fl_scope_begin();
        fl_var *x = fv_param(fl_arange(0, 4, 1, FL_F32));
        fl_backward(fv_sum(my_cos(x), FL_ALL_AXES));
        fl_print(fv_grad(x)); // -sin x
        fl_scope_end(&s);
        return 0;
    }
   <<example

   Contents: search for the marker.
     >>variables >>recording >>backward >>modes
     >>implementation

   Concepts
     Life time   As for tensors: a fl_var * that a function returns belongs to the innermost scope;
                 fv_keep what you store. A kept variable keeps its graph: store fv_detach(h).
     Saved       A node saves only what its backward reads, and releases it when backward passes
                 (unless retained).
     Versions    Every in-place write bumps the version of the storage. Backward fails, naming op
                 and tensor, when a saved value was written after it was saved. There are no
                 in-place fv_ ops; write a variable's tensor in no-grad regions. */
#include "fl_tensor.h"
#ifndef FL_AUTOGRAD_H
#define FL_AUTOGRAD_H

#ifdef __cplusplus
extern "C" {
#endif

/* >>variables ---------------------------------------------------------------------------------- */

/* x->grad is complete; it may be replaced through fv_set_grad. */
typedef void (*fv_hook_fn)(fl_var *x, void *user);
struct fl_var {
    fl_obj obj;
    fl_tensor *value;
    fl_var *grad;         /* of leaves after fl_backward; NULL before */
    fl_node *node;        /* that made it; NULL for leaves */
    bool requires_grad;
    /* private */
    fv_hook_fn hook_;
    void *hook_user_;
    fl_node *sink_;       /* of a leaf that has been used */
};

/* A constant; a leaf that requires a gradient (float only). Each keeps t. NULL passes. */
FL_API fl_var *fv_const(fl_tensor *t);
FL_API fl_var *fv_param(fl_tensor *t);
/* A weak number, as fl_num. */
FL_API fl_var *fv_num(double value);
FL_API fl_tensor *fv_value(const fl_var *x); /* NULL-safe, borrowed */
FL_API fl_tensor *fv_grad(const fl_var *x);  /* value of x->grad, NULL if there is none */
/* The same value without its graph. */
FL_API fl_var *fv_detach(fl_var *x);
FL_API fl_var *fv_keep(fl_var *x);
FL_API void fv_drop(fl_var *x);
FL_API fl_var *fv_scope_return(fl_scope *s, fl_var *x);
/* Drops x's gradient; replaces it (shape and dtype of x). */
FL_API void fv_zero_grad(fl_var *x);
FL_API bool fv_set_grad(fl_var *x, fl_var *g);
/* Calls fn when x's gradient is complete in a backward pass; one hook per variable, NULL removes
   it. */
FL_API void fv_hook(fl_var *x, fv_hook_fn fn, void *user);

/* >>recording ---------------------------------------------------------------------------------- */

/* A backward function: adds to the gradients of the node's inputs, given that of its output. Runs
   in a scope of its own. */
typedef void (*fl_back_fn)(fl_node *n, fl_var *dy);
typedef struct fv_list { int n; fl_var *const *v; } fv_list;
#define FV_MAX 8 /* inputs, and saved values, of a record at most */
#define FV_LIST(...) \
    ((fv_list){(int)(sizeof((fl_var *[]){__VA_ARGS__}) / sizeof(fl_var *)), (fl_var *[]){__VA_ARGS__}})
#define FV_IN(...) FV_LIST(__VA_ARGS__)
#define FV_SAVE(...) FV_LIST(__VA_ARGS__)
#define FV_NONE ((fv_list){0, NULL})
/* FV_OUT in a save list stands for the output itself. */
#define FV_OUT (fv__out())
FL_PRIVATE fl_var *fv__out(void);
/* The variable of `value`, produced from inputs `in` (edges) with `saved` values kept for `back`.
   Records nothing, so a plain constant, if no input requires a gradient or in no-grad regions. At
   most 8 of each. value NULL passes; NULL entries in `in` stand for absent optional inputs. */
FL_API fl_var *fv_record(fl_tensor *value, fl_back_fn back, fv_list in, fv_list saved);
/* The same with `bytes` of plain arguments copied into the node; read back by fv_args. name: for
   messages (a literal). */
FL_API fl_var *fv_record_args(const char *name, fl_tensor *value, fl_back_fn back, fv_list in,
                              fv_list saved, const void *args,
                              size_t bytes);
/* Everything that a record may say. */
typedef struct fv_record_opts {
    fl_op op;         /* a registered one: without `back`, name, back and bytes are its own */
    const char *name; /* for messages, a literal */
    fl_back_fn back;
    fv_list in, saved; /* at most FV_MAX each; NULL entries of `in` stand for absent optional inputs */
    unsigned blocked;  /* bit i: the gradient of input i is zero everywhere */
    /* The value again, from what was saved, for outputs that are cheaper to compute twice than to keep:
       a large one is kept neither by its node nor by those that save it. NULL: it is kept. */
    fl_tensor *(*recompute)(fl_node *n);
    int n_recompute_only; /* so many of the last of `saved` are read by `recompute` alone */
    const void *args;     /* `bytes` of plain arguments, copied */
    size_t bytes;
} fv_record_opts;
FL_API fl_var *fv_record_opt(fl_tensor *value, const fv_record_opts *o);
/* True if x's value is not kept for backward but computed again: so are views of it. */
FL_API bool fv_recomputed(const fl_var *x);
/* The variable of a registered op's result, whose backward is the op's gradient and whose arguments
   are `args`. value NULL passes. */
FL_API fl_var *fv_record_op(fl_op op, fl_tensor *value, fv_list in, fv_list saved, const void *args);
/* The variable of value = op(x), of an op of FL_UNARY_OPS that was computed in another record. Whether its
   gradient formula reads x: if not, y is enough. value NULL passes. */
FL_API fl_var *fv_record_formula(fl_op op, fl_var *x, fl_tensor *value);
FL_API bool fv_formula_reads_x(fl_op op);
/* In a backward function: saved value i (checked against its version), the arguments, whether input
   i wants a gradient, and its shape. */
FL_API fl_var *fv_saved(fl_node *n, int i);
FL_API const void *fv_args(const fl_node *n);
FL_API int fv_in_count(const fl_node *n);
FL_API int fv_saved_count(const fl_node *n);
FL_API fl_op fv_op(const fl_node *n); /* as recorded */
/* dy's tensor, if the input's gradient may be written over it: it is dense, and nobody else sees it;
   else NULL. */
FL_API fl_tensor *fv_own_grad(const fl_node *n, const fl_var *dy);
FL_API bool fv_needs(const fl_node *n, int i);
FL_API fl_shape fv_in_shape(const fl_node *n, int i);
/* Adds g to the gradient of input i; g NULL passes (an error is pending). g is summed to the
   input's shape if it was broadcast and cast to its dtype. */
FL_API void fv_add_grad(fl_node *n, int i, fl_var *g);

/* >>backward ----------------------------------------------------------------------------------- */

typedef struct fl_backward_opts {
    char _;
    fl_tensor *grad;    /* of the root; NULL: ones (the root must have one element) */
    bool retain_graph;  /* keep nodes and saved values for another pass */
    /* Records the backward pass itself: double backward; implies retain_graph. The gradients of
       leaves then hold graphs that hold the leaves: end with fv_zero_grad, or use fl_grad. */
    bool create_graph;
} fl_backward_opts;
/* Adds d root / d leaf to the gradient of every leaf that requires one. Iterative; nodes and saved
   values are freed one by one. False after an error (raised); refuses while one is pending. */
#define fl_backward(...) FL__BACKWARD(__VA_ARGS__, ._ = 0)
#define FL__BACKWARD(root, ...) fl_backward_opt(root, (fl_backward_opts){__VA_ARGS__})
FL_API bool fl_backward_opt(fl_var *root, fl_backward_opts o);
/* Gradient of root with respect to one variable (leaf or not), without touching any .grad.
   create_graph as above; the graph is kept. NULL if root does not depend on x (no error). */
FL_API fl_var *fl_grad(fl_var *root, fl_var *x, bool create_graph);
/* Forward mode: the derivative of y (of any shape) in the direction v of x (x's shape): J v, of y's
   shape. The gradient u J is linear in u; its own gradient is J v: so every op whose backward can be
   differentiated has a forward mode, by the same tables. create_graph and NULL as for fl_grad. */
FL_API fl_var *fl_jvp(fl_var *y, fl_var *x, fl_var *v, bool create_graph);

/* >>modes -------------------------------------------------------------------------------------- */

/* Nothing is recorded until on is false again or the scope ends; returns the setting before. */
FL_API bool fl_no_grad(bool on);
FL_API bool fl_grad_enabled(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_AUTOGRAD_H: stop here if you only want the API */

/* >>implementation ------------------------------------------------------------------------- */

#if defined(FL_IMPL_ONLY_AUTOGRAD) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_AUTOGRAD_IMPL
#define FL_AUTOGRAD_IMPL
#include "fl/ops/copy.h"
#include "fl/ops/elementwise.h"
#include "fl/ops/reduce.h"
#include <stdio.h>
#include <string.h>

/* Who holds whom. A variable holds its value, its gradient and its node. A node holds the nodes
   of its inputs (its edges) and what its backward reads (saved), not its output: an output that
   backward reads is saved as a tensor and gets a variable again when asked for. So a graph has no
   cycles, and a value that nothing reads dies with its handle. An edge to a leaf ends in the
   leaf's sink, a node without a backward function that is made when the leaf is first used; it
   knows its leaf without holding it. A graph belongs to one thread at a time. */

#define FV__NODE_MAX 1024 /* bytes that fl_obj_new gives */
enum { FV__NO_GRAD = 1 }; /* in fl_flags */
enum { FV__OUTPUT = -1, FV__OTHER = -2 };

typedef struct fv__saved {
    fl_var *var; /* NULL for the output, which node->out has, for what is not read, and for what is
                    computed again */
    uint32_t version;
    int operand; /* which input it is; FV__OUTPUT, FV__OTHER */
    bool recompute; /* by the node of that operand, or this one of its output */
} fv__saved;

struct fl_node {
    fl_obj obj;
    fl_back_fn back;  /* NULL: the sink of a leaf */
    const char *name; /* for messages */
    void *args;
    fl_op op;        /* of the tables' ops */
    fl_var *grad;    /* sum so far of a running pass */
    fl_tensor *out;     /* the output, if saved; if computed again, from then on */
    fl_tensor *(*recompute)(fl_node *n); /* NULL: the output is kept */
    uint32_t version;   /* of the output when it was made */
    fl_var *leaf;    /* of a sink; not held */
    fl_var *watched; /* the output variable, if it has a hook; not held: */
    fl_var *twin;    /* stands in when it is gone */
    fl_node *next;   /* in the list of the dying */
    int64_t pending; /* edges that lead here from nodes not yet in order */
    uint8_t n_in, n_saved, ndim[FV_MAX], dtype[FV_MAX];
    uint8_t depth; /* nodes in a row that compute again, this one the last */
    bool seen;   /* by the search of a pass */
    bool wanted; /* in a pass: its gradient is of use */
    bool spent;  /* backward has passed and taken edges and saved values */
    bool heap_args;
    /* behind it: edges, saved values, dims of the inputs, arguments */
};

enum { FV__LARGEST_INPUT = sizeof(void *) + sizeof(fv__saved) + FL_MAX_DIMS * sizeof(int64_t) };
_Static_assert(sizeof(fl_node) + FV_MAX * FV__LARGEST_INPUT <= FV__NODE_MAX,
               "a node is an object");

static fl_node **fv__edges(const fl_node *n) {
    return (fl_node **)(uintptr_t)(n + 1);
}

static fv__saved *fv__saves(const fl_node *n) {
    return (fv__saved *)(fv__edges(n) + n->n_in);
}

static int64_t *fv__dims(const fl_node *n) {
    return (int64_t *)(fv__saves(n) + n->n_saved);
}

/* "f32 [2, 3]" */
typedef struct fv__text {
    char s[256];
} fv__text;

static const char *fv__describe(const fl_tensor *t, fv__text *to) {
    char shape[200];
    snprintf(to->s, sizeof to->s, "%s %s", fl_dtype_name(t->dtype),
             fl_shape_text(fl_shape_of(t), shape, sizeof shape));
    return to->s;
}

static bool fv__same_shape(const fl_tensor *t, fl_shape s) {
    return t->ndim == s.ndim &&
           (!s.ndim || !memcmp(t->shape, s.dim, (size_t)s.ndim * sizeof *s.dim));
}

/* ---- variables ---- */

static void fv__var_drop(fl_obj *o) {
    fl_var *x = (fl_var *)o;
    if (x->sink_) {
        x->sink_->leaf = NULL;
        fl_obj_drop(&x->sink_->obj);
    }
    if (x->node) {
        if (x->node->watched == x) x->node->watched = NULL;
        fl_obj_drop(&x->node->obj);
    }
    fv_drop(x->grad);
    fl_drop(x->value);
    fl_obj_free(o);
}

FL_API fl_var *fv_const(fl_tensor *t) {
    if (!t) return NULL;
    fl_var *x = fl_obj_new(sizeof *x, fv__var_drop);
    if (!x) return fl_raise();
    fl_obj_take(&t->obj);
    x->value = t;
    return fl_obj_own(&x->obj) ? x : fl_raise();
}

FL_API fl_var *fv_param(fl_tensor *t) {
    fv__text text;
    if (!t) return NULL;
    if (t->weak || !fl_dtype_is_float(t->dtype)) {
        fl_fail("fv_param: %s%s cannot have a gradient", t->weak ? "the number " : "",
                fv__describe(t, &text));
        return fl_raise();
    }
    fl_var *x = fv_const(t);
    if (x) x->requires_grad = true;
    return x;
}

FL_API fl_var *fv_num(double value) {
    return fv_const(fl_num(value));
}

FL_API fl_tensor *fv_value(const fl_var *x) {
    return x ? x->value : NULL;
}

FL_API fl_tensor *fv_grad(const fl_var *x) {
    return x && x->grad ? x->grad->value : NULL;
}

FL_API fl_var *fv_detach(fl_var *x) {
    return fv_const(fv_value(x));
}

FL_API fl_var *fv_keep(fl_var *x) {
    if (x) fl_obj_keep(&x->obj);
    return x;
}

FL_API void fv_drop(fl_var *x) {
    if (x) fl_obj_drop(&x->obj);
}

FL_API fl_var *fv_scope_return(fl_scope *s, fl_var *x) {
    if (x) fl_obj_take(&x->obj);
    fl_scope_end(s);
    return !x || fl_obj_own(&x->obj) ? x : fl_raise();
}

FL_API void fv_zero_grad(fl_var *x) {
    if (!x) return;
    fl_var *old = x->grad;
    x->grad = NULL;
    fv_drop(old);
}

FL_API bool fv_set_grad(fl_var *x, fl_var *g) {
    fv__text a, b;
    if (!x || !g) {
        if (!fl_error()) fl_fail("fv_set_grad: %s is NULL", x ? "the gradient" : "the variable");
    } else if (g->value->dtype != x->value->dtype ||
               !fv__same_shape(g->value, fl_shape_of(x->value))) {
        fl_fail("fv_set_grad: gradient %s of %s", fv__describe(g->value, &a),
                fv__describe(x->value, &b));
    } else {
        fl_var *old = x->grad;
        x->grad = fv_keep(g);
        fv_drop(old);
        return true;
    }
    fl_raise();
    return false;
}

/* A node must be able to call the hook of its variable when that is gone: a twin of the same
   value stays. */
static bool fv__watch(fl_node *n, fl_var *x) {
    fl_scope s = fl_scope_begin();
    fl_var *twin = x->hook_ ? fv_const(x->value) : NULL;
    if (twin) {
        twin->hook_ = x->hook_;
        twin->hook_user_ = x->hook_user_;
    }
    fv_drop(n->twin);
    n->twin = fv_keep(twin);
    n->watched = twin ? x : NULL;
    fl_scope_end(&s);
    return twin || !x->hook_;
}

FL_API void fv_hook(fl_var *x, fv_hook_fn fn, void *user) {
    if (!x) return;
    x->hook_ = fn;
    x->hook_user_ = user;
    if (x->node && !x->node->spent && !fv__watch(x->node, x)) x->hook_ = NULL;
}

/* ---- modes ---- */

FL_API bool fl_no_grad(bool on) {
    uint64_t flags = fl_flags();
    fl_set_flags(on ? flags | FV__NO_GRAD : flags & ~(uint64_t)FV__NO_GRAD);
    return flags & FV__NO_GRAD;
}

FL_API bool fl_grad_enabled(void) {
    return !(fl_flags() & FV__NO_GRAD);
}

/* ---- nodes ---- */

/* Lets go of edges and saved values. */
static void fv__node_clear(fl_node *n) {
    fl_node **in = fv__edges(n);
    fv__saved *saved = fv__saves(n);
    for (int i = 0; i < n->n_saved; i++) {
        fv_drop(saved[i].var);
        saved[i].var = NULL;
    }
    for (int i = 0; i < n->n_in; i++) {
        fl_node *to = in[i];
        in[i] = NULL;
        if (to) fl_obj_drop(&to->obj);
    }
    fl_drop(n->out);
    n->out = NULL;
    fv_drop(n->twin);
    n->twin = NULL;
    if (n->heap_args) fl__free(n->args);
    n->args = NULL;
    n->heap_args = false;
}

static _Thread_local struct {
    bool busy;
    fl_node *first;
} fv__dying;

/* A chain of a million nodes dies by a list, not by recursion: a node that dies while another is
   cleared waits for its turn. */
static void fv__node_drop(fl_obj *o) {
    fl_node *n = (fl_node *)o;
    n->next = fv__dying.first;
    fv__dying.first = n;
    if (fv__dying.busy) return;
    fv__dying.busy = true;
    while ((n = fv__dying.first)) {
        fv__dying.first = n->next;
        if (!n->spent) fv__node_clear(n);
        fl_obj_free(&n->obj);
    }
    fv__dying.busy = false;
}

static fl_var fv__output;
FL_PRIVATE fl_var *fv__out(void) {
    return &fv__output;
}

static fl_node *fv__node_new(const fv_record_opts *s) {
    size_t size = sizeof(fl_node);
    size += (size_t)s->in.n * sizeof(fl_node *) + (size_t)s->saved.n * sizeof(fv__saved);
    for (int i = 0; i < s->in.n; i++)
        if (s->in.v[i]) size += (size_t)s->in.v[i]->value->ndim * sizeof(int64_t);
    size_t args_at = (size + 15) & ~(size_t)15;
    bool inside = s->bytes <= FV__NODE_MAX - args_at;
    fl_node *n = fl_obj_new(inside && s->bytes ? args_at + s->bytes : size, fv__node_drop);
    if (!n) return NULL;
    n->back = s->back;
    n->name = s->name;
    n->op = s->op;
    n->n_in = (uint8_t)s->in.n;
    n->n_saved = (uint8_t)s->saved.n;
    if (s->bytes == 0) return n;
    n->args = inside ? (char *)n + args_at : fl__alloc(s->bytes);
    n->heap_args = !inside;
    if (n->args) {
        memcpy(n->args, s->args, s->bytes);
        return n;
    }
    fl_obj_drop(&n->obj);
    return NULL;
}

/* Where the gradient of x goes, with a reference for the edge. */
static fl_node *fv__end_of(fl_var *x) {
    static const fv_record_opts sink = {.name = "a leaf"};
    if (!x->node && !x->sink_) {
        if (!(x->sink_ = fv__node_new(&sink))) return NULL;
        x->sink_->leaf = x;
    }
    fl_node *to = x->node ? x->node : x->sink_;
    fl_obj_keep(&to->obj);
    return to;
}

static bool fv__connect(fl_node *n, const fv_record_opts *s) {
    fl_node **in = fv__edges(n);
    int64_t *dim = fv__dims(n);
    for (int i = 0; i < s->in.n; i++) {
        fl_var *x = s->in.v[i];
        if (!x) continue;
        n->ndim[i] = (uint8_t)x->value->ndim;
        n->dtype[i] = (uint8_t)x->value->dtype;
        for (int d = 0; d < x->value->ndim; d++) *dim++ = x->value->shape[d];
        if (x->requires_grad && !(s->blocked >> i & 1) && !(in[i] = fv__end_of(x))) return false;
    }
    return true;
}

enum {
    FV__LARGE = 1 << 16, /* bytes of a value from which computing it again pays */
    FV__DEEPEST = 2      /* of a long chain of such values every third is kept */
};

/* Can the node that made x, operand k of n, make it again when n's backward wants it? Not if it was
   written to since. */
static bool fv__recomputable(const fl_node *n, int k, const fl_var *x) {
    return k >= 0 && x->node && x->node->recompute && fv__edges(n)[k] == x->node &&
           fl_version_of(x->value) == x->node->version;
}

static int fv__operand_of(const fv_record_opts *s, const fl_var *x) {
    if (x == &fv__output) return FV__OUTPUT;
    for (int k = 0; k < s->in.n; k++)
        if (s->in.v[k] == x) return k;
    return FV__OTHER;
}

static bool fv__same_storage(const fl_tensor *a, const fl_tensor *b) {
    return a && b && (a == b || (a->buffer && a->buffer == b->buffer));
}

/* Is n's value to be computed again? Then it is large, and not too much comes again before it; a view
   adds nothing to that. */
static void fv__decide_recompute(fl_node *n, const fv_record_opts *s, const fl_tensor *value) {
    if (!s->recompute || fl_numel(value) * (int64_t)fl_dtype_size(value->dtype) < FV__LARGE) return;
    n->depth = 1;
    for (int i = 0; i < s->saved.n; i++) {
        const fl_var *x = s->saved.v[i];
        const int k = x ? fv__operand_of(s, x) : FV__OTHER;
        if (!fv__recomputable(n, k, x)) continue;
        const int depth = x->node->depth + !fv__same_storage(value, x->value);
        if (depth > n->depth) n->depth = (uint8_t)depth;
    }
    if (n->depth <= FV__DEEPEST) n->recompute = s->recompute;
}

static void fv__save(fl_node *n, const fv_record_opts *s, fl_tensor *value) {
    const int count = s->saved.n - (n->recompute ? 0 : s->n_recompute_only);
    for (int i = 0; i < count; i++) {
        fl_var *x = s->saved.v[i];
        fv__saved *to = fv__saves(n) + i;
        if (!x) continue;
        to->operand = fv__operand_of(s, x);
        to->version = fl_version_of(x == &fv__output ? value : x->value);
        to->recompute = x == &fv__output ? n->recompute != NULL : fv__recomputable(n, to->operand, x);
        if (to->recompute) continue;
        if (x != &fv__output) to->var = fv_keep(x);
        else if (!n->out) n->out = fl_keep(value);
    }
}

/* Is a result of these inputs to be recorded? */
static bool fv__tracks(const fl_tensor *value, fv_list in) {
    bool any = false;
    if (!fl_grad_enabled() || !fl_dtype_is_float(value->dtype)) return false;
    for (int i = 0; i < in.n; i++) any |= in.v[i] && in.v[i]->requires_grad;
    return any;
}

FL_API fl_var *fv_record_opt(fl_tensor *value, const fv_record_opts *s) {
    fv_record_opts of_op;
    if (!value) return NULL;
    if (s->op && !s->back) {
        const fl_op_info *info = fl_op_get_info(s->op);
        if (!info) return fl_bad("fv_record_opt: there is no op %d", s->op);
        of_op = *s;
        of_op.name = info->name;
        of_op.back = info->gradient;
        of_op.bytes = s->args ? info->args_size : 0;
        s = &of_op;
    }
    fl_var *y = fv_const(value);
    if (!y || !fv__tracks(value, s->in)) return y;
    fl_node *n = fv__node_new(s);
    if (!n) return fl_raise();
    if (!fv__connect(n, s)) {
        fl_obj_drop(&n->obj);
        return fl_raise();
    }
    fv__decide_recompute(n, s, value);
    fv__save(n, s, value);
    n->version = fl_version_of(value);
    y->node = n;
    y->requires_grad = true;
    return y;
}

FL_API fl_var *fv_record_args(const char *name, fl_tensor *value, fl_back_fn back, fv_list in,
                              fv_list saved, const void *args, size_t bytes) {
    fv_record_opts s = {
        .name = name, .back = back, .in = in, .saved = saved, .args = args, .bytes = bytes};
    if (!value) return NULL;
    if (in.n <= FV_MAX && saved.n <= FV_MAX && back) return fv_record_opt(value, &s);
    if (!back) fl_fail("fv_record: %s has no backward function", name);
    else
        fl_fail("fv_record: %s has %d inputs and %d saved values, at most %d each", name, in.n,
                saved.n, FV_MAX);
    return fl_raise();
}

FL_API bool fv_recomputed(const fl_var *x) {
    return x && x->node && x->node->recompute;
}

FL_API fl_var *fv_record_op(fl_op op, fl_tensor *value, fv_list in, fv_list saved, const void *args) {
    const fl_op_info *info = fl_op_get_info(op);
    if (!value) return NULL;
    if (!info) return fl_bad("fv_record_op: there is no op %d", op);
    return fv_record_args(info->name, value, info->gradient, in, saved, args, info->args_size);
}

FL_API fl_var *fv_record(fl_tensor *value, fl_back_fn back, fv_list in, fv_list saved) {
    return fv_record_args("a custom op", value, back, in, saved, NULL, 0);
}

/* ---- in a backward function ---- */

/* The output, whose value is t, as a variable again. */
static fl_var *fv__output_of(fl_node *n, fl_tensor *t) {
    fl_var *y = fv_const(t);
    if (!y || !fl_grad_enabled()) return y;
    fl_obj_keep(&n->obj);
    y->node = n;
    y->requires_grad = true;
    return y;
}

FL_API fl_var *fv_saved(fl_node *n, int i) {
    fv__text text;
    char what[40];
    if (i < 0 || i >= n->n_saved) {
        fl_fail("fv_saved: %s saved %d values, there is no number %d", n->name, n->n_saved, i);
        return fl_raise();
    }
    const fv__saved *s = fv__saves(n) + i;
    if (s->recompute) {
        fl_node *from = s->operand == FV__OUTPUT ? n : fv__edges(n)[s->operand];
        if (!from->out) from->out = fl_keep(from->recompute(from));
        return fv__output_of(from, from->out);
    }
    fl_tensor *t = s->operand == FV__OUTPUT ? n->out : fv_value(s->var);
    if (!t) return NULL;
    if (fl_version_of(t) == s->version) return s->var ? s->var : fv__output_of(n, n->out);
    if (s->operand >= 0) snprintf(what, sizeof what, "operand %d of", s->operand);
    else if (s->operand == FV__OUTPUT) snprintf(what, sizeof what, "the result of");
    else snprintf(what, sizeof what, "saved value %d of", i);
    fl_fail("fl_backward: %s %s, %s, was written in place after it was saved", what, n->name,
            fv__describe(t, &text));
    return fl_raise();
}

FL_API const void *fv_args(const fl_node *n) {
    return n->args;
}

FL_API int fv_in_count(const fl_node *n) {
    return n->n_in;
}

FL_API int fv_saved_count(const fl_node *n) {
    return n->n_saved;
}

FL_API fl_op fv_op(const fl_node *n) {
    return n->op;
}

FL_API bool fv_needs(const fl_node *n, int i) {
    if (i < 0 || i >= n->n_in) return false;
    const fl_node *to = fv__edges(n)[i];
    return to && to->wanted;
}

FL_API fl_shape fv_in_shape(const fl_node *n, int i) {
    fl_shape s = FL_SCALAR_SHAPE;
    if (i < 0 || i >= n->n_in) return s;
    const int64_t *dim = fv__dims(n);
    for (int k = 0; k < i; k++) dim += n->ndim[k];
    s.ndim = n->ndim[i];
    for (int d = 0; d < s.ndim; d++) s.dim[d] = dim[d];
    return s;
}

static bool fv__has_in_shape(const fl_node *n, int i, const fl_tensor *t) {
    const int64_t *dim = fv__dims(n);
    for (int k = 0; k < i; k++) dim += n->ndim[k];
    if (t->ndim != n->ndim[i]) return false;
    for (int d = 0; d < t->ndim; d++)
        if (t->shape[d] != dim[d]) return false;
    return true;
}

/* Has x's value `handles` handles in all, x's own among them, and does nobody else hold that or x? */
static bool fv__is_sole(const fl_var *x, int handles) {
    const fl_tensor *t = x->value;
    return __atomic_load_n(&x->obj.refs_, __ATOMIC_ACQUIRE) == 1 &&
           __atomic_load_n(&t->obj.refs_, __ATOMIC_ACQUIRE) == 1 && t->buffer &&
           __atomic_load_n(&t->buffer->refs_, __ATOMIC_ACQUIRE) == handles;
}

/* Is g all of n's gradient, seen otherwise, which dies when n's backward has passed? */
static bool fv__inherits(const fl_node *n, const fl_tensor *g) {
    const fl_tensor *dy = n->grad->value;
    return fl_numel(g) == fl_numel(dy) && fv__is_sole(n->grad, g == dy ? 1 : 2);
}

/* Does g share storage with something else that n's backward sees? */
static bool fv__is_shared(const fl_node *n, const fl_tensor *g) {
    fl_node **in = fv__edges(n);
    const fv__saved *saved = fv__saves(n);
    bool shared = (fv__same_storage(g, fv_value(n->grad)) && !fv__inherits(n, g)) ||
                  fv__same_storage(g, n->out);
    for (int i = 0; i < n->n_in; i++) shared |= in[i] && fv__same_storage(g, fv_value(in[i]->grad));
    for (int i = 0; i < n->n_saved; i++) shared |= fv__same_storage(g, fv_value(saved[i].var));
    return shared;
}

/* g as a gradient of input i: its shape, its dtype, a tensor rather than a number. */
static fl_var *fv__fit(fl_node *n, int i, fl_var *g) {
    fl_dtype dtype = (fl_dtype)n->dtype[i];
    if (g->value->weak) {
        fl_tensor *t = fl_new_full(n->grad->value, fv_in_shape(n, i), g->value->f64);
        g = fv_const(t);
    } else if (!fv__has_in_shape(n, i, g->value)) {
        g = fv_sum_to(g, fv_in_shape(n, i));
    }
    return g && g->value->dtype != dtype ? fv_cast(g, dtype) : g;
}

/* Are t's elements one block of memory, each once, in any order of axes? */
static bool fv__is_dense(const fl_tensor *t) {
    int64_t n = 1;
    for (int64_t known = 0; known != n;) {
        known = n;
        for (int d = 0; d < t->ndim; d++)
            if (t->shape[d] > 1 && t->stride[d] == n) n *= t->shape[d];
    }
    return n == fl_numel(t);
}

FL_API fl_tensor *fv_own_grad(const fl_node *n, const fl_var *dy) {
    return dy && dy == n->grad && fv__is_sole(dy, 1) && fv__is_dense(dy->value) ? dy->value : NULL;
}

/* sum + g, in place where nobody else sees sum. */
static fl_var *fv__sum_of(fl_var *sum, fl_var *g) {
    fl_tensor *t = sum->value;
    bool alike = t->dtype == g->value->dtype && t->family == g->value->family && !g->value->weak &&
                 fv__same_shape(t, fl_shape_of(g->value));
    if (fl_grad_enabled() || !alike || !fv__is_sole(sum, 1) || !fv__is_dense(t))
        return fv_add(sum, g);
    fl_call c = {.op = FL_OP_add, .n_out = 1, .n_in = 2, .out = {t}, .in = {t, g->value}};
    return fl_run(&c) ? sum : fl_raise();
}

FL_API void fv_add_grad(fl_node *n, int i, fl_var *g) {
    if (n && (i < 0 || i >= n->n_in)) {
        fl_fail("fv_add_grad: %s has %d inputs, there is no input %d", n->name, n->n_in, i);
        return;
    }
    if (!g || !fv_needs(n, i)) return;
    fl_node *to = fv__edges(n)[i];
    g = fv__fit(n, i, g);
    if (g && to->grad) g = fv__sum_of(to->grad, g);
    else if (g && to->leaf && !fl_grad_enabled() && fv__is_shared(n, g->value))
        g = fv_const(fl_clone(g->value));
    if (!g) return;
    fl_var *old = to->grad;
    to->grad = fv_keep(g);
    fv_drop(old);
}

/* ---- backward ---- */

/* One pass. Nodes are put in order first (Kahn's algorithm, no recursion), then visited. */
typedef struct fv__pass {
    fl_node **node;
    int64_t n, cap;
    fl_node *target; /* fl_grad's: only what leads to it is visited, and its gradient stays in it */
    bool retain;
} fv__pass;

static void fv__forget(fv__pass *p) {
    for (int64_t i = 0; i < p->n; i++) {
        fl_node *n = p->node[i], **in = fv__edges(n);
        n->seen = false;
        for (int k = 0; k < n->n_in; k++)
            if (in[k]) in[k]->pending = 0;
    }
}

static bool fv__find(fv__pass *p, fl_node *to) {
    to->pending++;
    if (to->seen) return true;
    if (to->spent)
        return fl_fail("fl_backward: the graph behind %s was freed by an earlier backward; "
                       "pass .retain_graph = true there",
                       to->name);
    if (p->n == p->cap && !fl__grow(&p->node, &p->cap, p->n + 1, sizeof *p->node)) return false;
    to->seen = true;
    p->node[p->n++] = to;
    return true;
}

/* All nodes behind root, with the number of edges that lead to each. */
static bool fv__search(fv__pass *p, fl_node *root) {
    bool ok = fv__find(p, root);
    for (int64_t i = 0; ok && i < p->n; i++) {
        fl_node *n = p->node[i], **in = fv__edges(n);
        for (int k = 0; ok && k < n->n_in; k++)
            if (in[k]) ok = fv__find(p, in[k]);
    }
    if (ok) return true;
    fv__forget(p);
    root->pending = 0;
    return false;
}

/* Orders them so that a node comes after all that lead to it, and holds them. */
static void fv__sort(fv__pass *p) {
    p->n = 1;
    p->node[0]->pending = 0;
    for (int64_t i = 0; i < p->n; i++) {
        fl_node *n = p->node[i], **in = fv__edges(n);
        n->seen = false;
        fl_obj_keep(&n->obj);
        for (int k = 0; k < n->n_in; k++)
            if (in[k] && --in[k]->pending == 0) p->node[p->n++] = in[k];
    }
    for (int64_t i = p->n; i-- > 0;) {
        fl_node *n = p->node[i], **in = fv__edges(n);
        n->wanted = !p->target || n == p->target;
        for (int k = 0; k < n->n_in && n != p->target; k++) n->wanted |= in[k] && in[k]->wanted;
    }
}

/* g stored as leaf is, if that is dense, else row-major: then steps read both in one line. */
static fl_tensor *fv__stored_as(fl_tensor *g, fl_tensor *leaf) {
    if (fl_is_contiguous(leaf)) return fl_contiguous(g);
    fl_tensor *y = fl_empty_like(leaf);
    bool alike = y != NULL;
    for (int i = 0; alike && i < g->ndim; i++)
        alike = g->shape[i] == 1 || g->stride[i] == y->stride[i];
    if (!y) return NULL;
    return alike ? g : fl_assign(y, g);
}

/* Adds the gradient that arrived at a sink to its leaf's. That one shares no storage. */
static void fv__accumulate(fl_node *sink) {
    fl_var *x = sink->leaf, *g = sink->grad;
    if (!x || !x->requires_grad) return;
    if (!fl_grad_enabled()) {
        fl_tensor *stored = fv__stored_as(g->value, x->value);
        if (stored != g->value) g = fv_const(stored);
    }
    if (g && x->grad) g = fv__sum_of(x->grad, g);
    if (!g || !fv_set_grad(x, g) || !x->hook_) return;
    fv_keep(x);
    x->hook_(x, x->hook_user_);
    fv_drop(x);
}

static void fv__call_hook(fl_node *n) {
    fl_var *x = fv_keep(n->watched ? n->watched : n->twin), *before = x->grad;
    x->grad = n->grad;
    x->hook_(x, x->hook_user_);
    n->grad = x->grad;
    x->grad = before;
    fv_drop(x);
}

static void fv__visit(const fv__pass *p, fl_node *n) {
    fl_scope s = fl_scope_begin();
    if (fl_error()) return;
    if (n->twin) fv__call_hook(n);
    if (n->back && n->grad && n != p->target) n->back(n, n->grad);
    if (!n->back && !p->target) fv__accumulate(n);
    fl_scope_end(&s);
}

/* Visits until the first error; drops what the pass held. */
static void fv__run(fv__pass *p) {
    for (int64_t i = 0; i < p->n; i++) {
        fl_node *n = p->node[i];
        if (n->grad && n->wanted && !fl_error()) fv__visit(p, n);
        if (n != p->target) {
            fl_var *g = n->grad;
            n->grad = NULL;
            fv_drop(g);
        }
        if (!p->retain && n->back && !fl_error()) {
            n->spent = true;
            fv__node_clear(n);
        } else if (n->recompute) {
            fl_drop(n->out);
            n->out = NULL;
        }
        n->wanted = true; /* for a pass around this one */
        fl_obj_drop(&n->obj);
    }
}

/* The gradient that a pass starts with; NULL after an error. */
static fl_var *fv__seed(const char *who, const fl_var *root, fl_tensor *given) {
    fv__text a, b;
    fl_tensor *v = root->value;
    if (!given && fl_numel(v) != 1)
        fl_fail("%s: the root is %s; reduce it to one element%s", who, fv__describe(v, &a),
                strcmp(who, "fl_grad") ? " or pass .grad" : "");
    else if (given && !fv__same_shape(given, fl_shape_of(v)))
        fl_fail("%s: .grad is %s, the root %s", who, fv__describe(given, &a), fv__describe(v, &b));
    else if (!given) return fv_const(fl_full_like(v, 1));
    else /* a leaf's gradient has storage of its own */
        return fv_const(fl_cast(root->node ? given : fl_clone(given), v->dtype));
    return NULL;
}

/* Runs a pass from root, in a scope of its own; the error handler is not called in its midst. */
static bool fv__backward(fv__pass *p, const char *who, fl_var *root, fl_tensor *grad,
                         bool create_graph) {
    uint64_t flags = fl_flags();
    fl_scope s = fl_scope_begin();
    fl_quiet(1);
    fl_no_grad(!create_graph);
    fl_var *g = fl_error() ? NULL : fv__seed(who, root, grad);
    fl_node *first = g ? fv__end_of(root) : NULL;
    if (first && fv__search(p, first)) {
        fv__sort(p);
        fl_var *old = first->grad;
        first->grad = fv_keep(g);
        fv_drop(old);
        fv__run(p);
    }
    if (first) fl_obj_drop(&first->obj);
    fl__free(p->node);
    fl_quiet(-1);
    fl_scope_end(&s);
    fl_set_flags(flags); /* the scope may not have begun */
    return !fl_error();
}

FL_API bool fl_backward_opt(fl_var *root, fl_backward_opts o) {
    fv__pass p = {.retain = o.retain_graph || o.create_graph};
    if (fl_error()) return false;
    if (!root || !root->requires_grad)
        fl_fail("fl_backward: the root %s",
                root ? "does not depend on anything that requires a gradient" : "is NULL");
    else if (fv__backward(&p, "fl_backward", root, o.grad, o.create_graph)) return true;
    fl_raise();
    return false;
}

FL_API fl_var *fl_grad(fl_var *root, fl_var *x, bool create_graph) {
    if (fl_error()) return NULL;
    if (!root || !x) {
        fl_fail("fl_grad: the %s is NULL", root ? "variable" : "root");
        return fl_raise();
    }
    if (!root->requires_grad || !x->requires_grad) return NULL;
    fl_node *target = fv__end_of(x);
    if (!target) return fl_raise();
    fv__pass p = {.target = target, .retain = true};
    fl_var *outer = target->grad; /* of a pass that calls this one */
    target->grad = NULL;
    bool ok = fv__backward(&p, "fl_grad", root, NULL, create_graph);
    fl_var *g = target->grad;
    target->grad = outer;
    fl_obj_drop(&target->obj);
    if (ok && (!g || fl_obj_own(&g->obj))) return g;
    if (!ok) fv_drop(g);
    return fl_raise();
}

FL_API fl_var *fl_jvp(fl_var *y, fl_var *x, fl_var *v, bool create_graph) {
    if (fl_error()) return NULL;
    if (!y || !x || !v) {
        fl_fail("fl_jvp: the %s is NULL", !y ? "result" : !x ? "variable" : "direction");
        return fl_raise();
    }
    if (!y->requires_grad || !x->requires_grad) return NULL;
    fl_shape want = fl_shape_of(x->value), have = fl_shape_of(v->value);
    if (want.ndim != have.ndim || memcmp(want.dim, have.dim, sizeof *want.dim * (size_t)want.ndim)) {
        char a[100], b[100];
        fl_fail("fl_jvp: the direction has shape %s, the variable %s",
                fl_shape_text(have, a, sizeof a), fl_shape_text(want, b, sizeof b));
        return fl_raise();
    }
    fl_scope s = fl_scope_begin();
    bool recorded = fl_no_grad(false);
    fl_var *u = fv_param(fl_full_like(y->value, 1));
    fl_var *g = fl_grad(fv_sum(fv_mul(y, u), FL_ALL_AXES), x, true);
    fl_var *jv = g ? fl_grad(fv_sum(fv_mul(g, v), FL_ALL_AXES), u, create_graph) : NULL;
    fl_no_grad(recorded);
    return fv_scope_return(&s, jv);
}

#endif /* FL_AUTOGRAD_IMPL */
#endif /* implementation */
/* MIT licence: see LICENSE. */
