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
   Its rooms, which come with it: fl/autograd/forward.h has the forward mode, fl/tools/gradcheck.h
   gradients against finite differences, and Jacobians, fl/autograd/tape.h the tape as a graph to look at.

   Concepts
     Life time   As for tensors: a fl_var * that a function returns belongs to the innermost scope;
                 fv_keep what you store. A kept variable keeps its graph: store fv_detach(h).
     Threads     A graph belongs to the thread that records it. Several may read one net's parameters
                 at once (evaluation, best in no-grad regions); backward passes through the same
                 leaves run in one thread at a time, which is checked.
     Saved       A node saves only what its backward reads, and releases it when backward passes
                 (unless retained).
     Order       C leaves open in which order the arguments of a call are computed: f(D(a), D(b)) may
                 run D(b) first. Name the results where running statistics or generators are concerned.
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
typedef struct fv_hooks fv_hooks;
struct fl_var {
    fl_obj obj;
    fl_tensor *value;
    fl_var *grad;         /* of leaves after fl_backward; NULL before */
    fl_node *node;        /* that made it; NULL for leaves */
    bool requires_grad;
    /* private */
    fv_hooks *hooks_;
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
/* Calls fn when x's gradient is complete in a backward pass. Several hooks are called in the order in
   which they came; each sees the gradient that the one before it left. The result is a number for
   fv_unhook, from 1; 0 after an error, and for fn NULL, which removes all hooks. A hook may add and
   remove hooks, itself too: what it adds is called in the same pass. */
FL_API int fv_hook(fl_var *x, fv_hook_fn fn, void *user);
FL_API void fv_unhook(fl_var *x, int hook);

/* >>recording ---------------------------------------------------------------------------------- */

/* A backward function: adds to the gradients of the node's inputs, given that of its output. Runs
   in a scope of its own. */
typedef void (*fl_back_fn)(fl_node *n, fl_var *dy);
typedef struct fv_list { int n; fl_var *const *v; } fv_list;
/* {n, v}: a macro such as fl_optim_sgd would take the comma of that for one between its arguments. */
FL_API fv_list fv_list_of(int n, fl_var *const *v);
/* False, with an error that is not raised, if the list is empty or has a NULL; `what` names one of it. */
FL_API bool fv_check_list(const char *who, const char *what, fv_list list);
#define FV_MAX 8 /* inputs, and saved values, of a record at most */
#define FV_LIST(...) FL_LITERAL(fv_list, FL_COUNT(fl_var *, __VA_ARGS__), FL_ARRAY(fl_var *, __VA_ARGS__))
#define FV_IN(...) FV_LIST(__VA_ARGS__)
#define FV_SAVE(...) FV_LIST(__VA_ARGS__)
#define FV_NONE FL_LITERAL(fv_list, 0, NULL)
/* FV_OUT in a save list stands for the output itself, FV_OUT_OF(k) for output k of several. */
#define FV_OUT FV_OUT_OF(0)
#define FV_OUT_OF(k) (fv__out(k))
FL_PRIVATE fl_var *fv__out(int k);
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
    /* Frees what the arguments own, not `args` itself: called once with their copy when backward has used
       the record or its graph is dropped, or with `args` if nothing is recorded, after an error too. NULL:
       they own nothing. */
    void (*free_args)(void *args);
} fv_record_opts;
FL_API fl_var *fv_record_opt(fl_tensor *value, const fv_record_opts *o);
/* One node of n <= FV_MAX results: y[k] is the variable of value[k]. Its backward runs once, when the
   gradients of all of them are complete, and reads them by fv_grad_of; its dy is one of them. No
   `recompute`. value NULL passes. False, and y untouched, after an error. */
FL_API bool fv_record_several(int n, fl_tensor *const *value, fl_var **y, const fv_record_opts *o);
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
/* For those who look at a graph: the node's name; the node that made input i, NULL where no gradient goes;
   the leaf that ends a path of them, if it is alive, else NULL; who made it (fl_provenance_here), "" if unknown. */
FL_API const char *fv_node_name(const fl_node *n);
FL_API fl_node *fv_in_node(const fl_node *n, int i);
FL_API fl_var *fv_leaf_of(const fl_node *n);
FL_API const char *fv_made_by(const fl_node *n);
/* dy's tensor, if the input's gradient may be written over it: it is dense, and nobody else sees it;
   else NULL. */
FL_API fl_tensor *fv_own_grad(const fl_node *n, const fl_var *dy);
/* The gradient of result k of several; NULL if none has come, so it is zero. */
FL_API fl_var *fv_grad_of(fl_node *n, int k);
FL_API bool fv_needs(const fl_node *n, int i);
FL_API fl_shape fv_in_shape(const fl_node *n, int i);
/* Adds g to the gradient of input i; g NULL passes (an error is pending). g is summed to the
   input's shape if it was broadcast and cast to its dtype. */
FL_API void fv_add_grad(fl_node *n, int i, fl_var *g);
/* For views: adds g to what `part` shows, a view, of a tensor like input i, which is its gradient. In
   place, so that many parts of one source cost what they hold, not that of the source each. False, and
   nothing is added, where that cannot be: when the pass is recorded, and without views to write
   through. Then add g with zeros around it. */
typedef fl_tensor *(*fv_part_fn)(fl_node *n, fl_tensor *whole);
FL_API bool fv_add_grad_part(fl_node *n, int i, fl_var *g, fv_part_fn part);

/* >>backward ----------------------------------------------------------------------------------- */

typedef struct fl_backward_opts {
    fl_opts_guard guard_;
    fl_tensor *grad;    /* of the root; NULL: ones (the root must have one element) */
    bool retain_graph;  /* keep nodes and saved values for another pass */
    /* Records the backward pass itself: double backward; implies retain_graph. The gradients of
       leaves then hold graphs that hold the leaves: end with fv_zero_grad, or use fl_grad. */
    bool create_graph;
    char _end;
} fl_backward_opts;
/* Adds d root / d leaf to the gradient of every leaf that requires one. Iterative; nodes and saved
   values are freed one by one. False after an error (raised); refuses while one is pending. */
#define fl_backward(...) FL__BACKWARD(__VA_ARGS__, ._end = 0)
#define FL__BACKWARD(root, ...) fl_backward_opt(root, FL_LITERAL(fl_backward_opts, __VA_ARGS__))
FL_API bool fl_backward_opt(fl_var *root, fl_backward_opts o);
/* Gradient of root with respect to one variable (leaf or not), without touching any .grad.
   create_graph as above; the graph is kept. NULL if root does not depend on x (no error). */
FL_API fl_var *fl_grad(fl_var *root, fl_var *x, bool create_graph);
/* The same in one pass for several of each: grads[i] = the sum over outputs k of d outputs[k] /
   d inputs[i] applied to given[k], as torch.autograd.grad. `given` may itself be differentiated.
     fl_grads(FV_LIST(loss), fl_nn_parameters(m), g, .create_graph = true)
   and, with directions v, fl_grads(fv_list_of(n, g), params, hv, .given = fv_list_of(n, v)) is a
   Hessian-vector product by reverse over reverse, fl_jvps(fv_list_of(n, g), params, fv_list_of(n, v),
   hv, false) by forward over reverse: examples/hessian.c. False after an error, grads untouched. */
typedef struct fl_grads_opts {
    fl_opts_guard guard_;
    fv_list given;     /* for each output a gradient of its shape; none, or NULL: ones (one element) */
    bool retain_graph; /* as fl_backward's: else what the pass went through is freed */
    bool create_graph;
    bool allow_unused; /* an input that no output depends on gets NULL; else it is an error */
    char _end;
} fl_grads_opts;
#define fl_grads(...) FL__GRADS(__VA_ARGS__, ._end = 0)
#define FL__GRADS(outputs, inputs, grads, ...) \
    fl_grads_opt(outputs, inputs, grads, FL_LITERAL(fl_grads_opts, __VA_ARGS__))
FL_API bool fl_grads_opt(fv_list outputs, fv_list inputs, fl_var **grads, fl_grads_opts o);
/* What follows the passes of fl_backward on this thread while they run, as a reducer of gradients over
   processes does. A watcher is the caller's, and stays in place until fv_unwatch; several are called in
   the order in which they came. Neither function may be NULL. A pass that a backward function runs is
   a pass of its own; fl_grad, fl_grads and fl_jvp, which change no leaf, are not watched. */
typedef struct fv_watcher fv_watcher;
struct fv_watcher {
    /* x->grad is final in this pass, x's hooks have run: once for each leaf that requires a gradient
       and lies behind the root, in the order in which they get ready; for one that got no gradient
       too, whose x->grad is as it was, maybe NULL. Runs within the pass: nothing is recorded, and an
       error of its own ends the pass. Not for the leaves that are left after an error. */
    void (*leaf_ready)(fv_watcher *w, fl_var *x);
    /* The pass is over: once for each, also after an error, whose text is given; else NULL. Runs in a
       scope of its own; an error of its own makes fl_backward fail. */
    void (*end)(fv_watcher *w, const char *error);
    void *user;
    fv_watcher *next_; /* private */
};
FL_API void fv_watch(fv_watcher *w);
FL_API void fv_unwatch(fv_watcher *w); /* also from within its own functions */
/* Is there a watcher with another leaf_ready? */
FL_PRIVATE bool fv__others_watch(const fv_watcher *w);

/* >>modes -------------------------------------------------------------------------------------- */

/* Nothing is recorded until on is false again or the scope ends; returns the setting before. */
FL_API bool fl_no_grad(bool on);
/* Backward computes cheap values of so many bytes or more again, where it reads them, rather than keep them;
   0: none. -1, as at the start: those of 64 KiB, which spares a processor's caches and memory, but none on
   a device of its own, whose bandwidth they would cost. Process-wide; returns the setting before. */
FL_API int64_t fl_set_recompute(int64_t bytes);
FL_API bool fl_grad_enabled(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_AUTOGRAD_H: stop here if you only want the API */

/* >>implementation ------------------------------------------------------------------------- */

#if defined(FL_IMPL_ONLY_AUTOGRAD) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_AUTOGRAD_IMPL
#define FL_AUTOGRAD_IMPL
#include "fl_backend.h"
#include "fl/autograd/accumulate.h"
#include "fl/tensor/copy.h"
#include <stdio.h>
#include <string.h>

/* Who holds whom. A variable holds its value, its gradient and its node. A node holds the nodes
   of its inputs (its edges) and what its backward reads (saved), not its output: an output that
   backward reads is saved as a tensor and gets a variable again when asked for. So a graph has no
   cycles, and a value that nothing reads dies with its handle. An edge to a leaf ends in the
   leaf's sink, a node without a backward function that is made when the leaf is first used; it
   knows its leaf without holding it. A graph belongs to one thread at a time; leaves are shared. */

#define FV__NODE_MAX 1024 /* bytes that fl_obj_new gives */
enum { FV__NO_GRAD = 1 }; /* in fl_flags */
enum { FV__OTHER = -1, FV__OUTPUT = -2 }; /* result k of several: FV__OUTPUT - k */

typedef struct fv__saved {
    fl_var *var; /* NULL for the output, which node->out has (of several it is a constant here), for
                    what is not read, and for what is computed again */
    uint32_t version;
    int operand; /* which input it is; FV__OTHER, FV__OUTPUT - k */
    bool recompute; /* by the node of that operand, or this one of its output */
} fv__saved;

struct fl_node {
    fl_obj obj;
    fl_back_fn back;  /* NULL: the sink of a leaf */
    const char *name; /* for messages */
    void *args;
    void (*free_args)(void *args); /* NULL: they own nothing */
    fl_op op;        /* of the tables' ops */
    uint32_t version; /* of the output when it was made */
    fl_var *grad;    /* sum so far of a running pass */
    fl_tensor *out;     /* the output, if saved; if computed again, from then on */
    fl_tensor *(*recompute)(fl_node *n); /* NULL: the output is kept */
    fl_var **results;   /* of one with several: their gradients so far */
    fl_var *leaf;    /* of a sink; not held */
    void *pass;      /* of a sink: the outermost pass that it is in */
    fl_var *hook_var; /* the output variable, if it has a hook; not held: */
    fl_var *hook_copy;    /* stands in when it is gone */
    fl_provenance *made;   /* by whom, if that is noted */
    fl_node *next;   /* in the list of the dying */
    int64_t pending; /* edges that lead here from nodes not yet in order */
    uint8_t n_in, n_saved, ndim[FV_MAX], dtype[FV_MAX];
    uint8_t n_results; /* if several */
    uint8_t depth; /* nodes in a row that compute again, this one the last */
    bool seen;   /* by the search of a pass */
    bool wanted; /* in a pass: its gradient is of use */
    bool target; /* of a pass: its gradient stays in it */
    bool spent;  /* backward has passed and taken edges and saved values */
    bool heap_args;
    /* behind it: edges, saved values, dims of the inputs, arguments */
};

enum { FV__LARGEST_INPUT = sizeof(void *) + sizeof(fv__saved) + FL_MAX_DIMS * sizeof(int64_t) };
_Static_assert(sizeof(fl_node) + FV_MAX * FV__LARGEST_INPUT <= FV__NODE_MAX,
               "a node is an object");

typedef struct fv__hook {
    fv_hook_fn fn;
    void *user;
    int number;
} fv__hook;

/* Of a variable and of its twin. */
struct fv_hooks {
    fl_obj obj;
    fv__hook *at; /* by rising numbers */
    int64_t n, cap;
    int last; /* number */
};

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

/* ---- variables ---- */

static void fv__var_drop(fl_obj *o) {
    fl_var *x = (fl_var *)o;
    if (x->sink_) {
        x->sink_->leaf = NULL;
        fl_obj_drop(&x->sink_->obj);
    }
    if (x->node) {
        if (x->node->hook_var == x) x->node->hook_var = NULL;
        fl_obj_drop(&x->node->obj);
    }
    if (x->hooks_) fl_obj_drop(&x->hooks_->obj);
    fv_drop(x->grad);
    fl_drop(x->value);
    fl_obj_free(o);
}

FL_API fl_var *fv_const(fl_tensor *t) {
    if (!t) return NULL;
    fl_var *x = fl_obj_new(sizeof *x, fv__var_drop);
    if (!x) return fl_raise();
    fl_obj_steal(&t->obj);
    x->value = t;
    return fl_scope_adopt(&x->obj) ? x : fl_raise();
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
#ifdef FL_DEBUG
    if (fl_is_dropped("fv_value", x)) return NULL;
#endif
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

FL_API fv_list fv_list_of(int n, fl_var *const *v) {
    return (fv_list){n, v};
}

FL_API bool fv_check_list(const char *who, const char *what, fv_list list) {
    if (list.n < 1 || !list.v) return fl_fail("%s: the list of %ss is empty", who, what);
    for (int i = 0; i < list.n; i++)
        if (!list.v[i]) return fl_fail("%s: %s %d is NULL", who, what, i);
    return true;
}

FL_API fl_var *fv_scope_return(fl_scope *s, fl_var *x) {
    if (x) fl_obj_steal(&x->obj);
    fl_scope_end(s);
    return !x || fl_scope_adopt(&x->obj) ? x : fl_raise();
}

FL_API void fv_zero_grad(fl_var *x) {
    if (!x) return;
    fl_var *old = x->grad;
    x->grad = NULL;
    fv_drop(old);
}

static bool fv__alike(const fl_tensor *a, const fl_tensor *b) {
    return a->dtype == b->dtype && fl_same_shape(a, b);
}

FL_API bool fv_set_grad(fl_var *x, fl_var *g) {
    fv__text a, b;
    if (!x || !g) {
        if (!fl_error()) fl_fail("fv_set_grad: %s is NULL", x ? "the gradient" : "the variable");
    } else if (!fv__alike(g->value, x->value)) {
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

/* ---- hooks and watchers ---- */

static void fv__hooks_drop(fl_obj *o) {
    fl_heap_free(((fv_hooks *)o)->at);
    fl_obj_free(o);
}

/* x's hooks, with a reference for x; NULL after fl_fail. */
static fv_hooks *fv__hooks_of(fl_var *x) {
    fl_node *n = x->node;
    if (x->hooks_) return x->hooks_;
    if (!n || !n->hook_copy) return x->hooks_ = fl_obj_new(sizeof *x->hooks_, fv__hooks_drop);
    fl_obj_keep(&n->hook_copy->hooks_->obj);
    return x->hooks_ = n->hook_copy->hooks_;
}

/* A node must be able to call the hooks of its variable when that is gone: a twin of the same value
   stays. */
static bool fv__follow(fl_node *n, fl_var *x) {
    if (n->hook_copy) return true;
    fl_scope s = fl_scope_begin();
    n->hook_copy = fv_keep(fv_const(x->value));
    fl_scope_end(&s);
    if (!n->hook_copy) return false;
    fl_obj_keep(&x->hooks_->obj);
    n->hook_copy->hooks_ = x->hooks_;
    n->hook_var = x;
    return true;
}

FL_API int fv_hook(fl_var *x, fv_hook_fn fn, void *user) {
    if (!x) return 0;
    if (!fn) {
        if (x->hooks_) x->hooks_->n = 0;
        return 0;
    }
    fv_hooks *h = fv__hooks_of(x);
    bool ok = h && (h->n < h->cap || fl_heap_grow(&h->at, &h->cap, h->n + 1, sizeof *h->at));
    if (ok && x->node && !x->node->spent) ok = fv__follow(x->node, x);
    if (!ok) return fl_raise(), 0;
    h->at[h->n++] = (fv__hook){fn, user, ++h->last};
    return h->last;
}

FL_API void fv_unhook(fl_var *x, int hook) {
    fv_hooks *h = x ? x->hooks_ : NULL;
    int64_t kept = 0;
    for (int64_t i = 0; h && i < h->n; i++)
        if (h->at[i].number != hook) h->at[kept++] = h->at[i];
    if (h) h->n = kept;
}

/* Each after the one with the number before it, whatever came and went meanwhile. */
static void fv__call_hooks(fl_var *x) {
    fv_hooks *h = fv_keep(x)->hooks_;
    for (int64_t i = 0; h && i < h->n;) {
        const fv__hook now = h->at[i];
        now.fn(x, now.user);
        for (i = 0; i < h->n && h->at[i].number <= now.number;) i++;
    }
    fv_drop(x);
}

static _Thread_local fv_watcher *fv__watchers;

FL_API void fv_unwatch(fv_watcher *w) {
    for (fv_watcher **at = &fv__watchers; *at; at = &(*at)->next_)
        if (*at == w) {
            *at = w->next_;
            return;
        }
}

FL_API void fv_watch(fv_watcher *w) {
    fv_watcher **at = &fv__watchers;
    if (fl_is_null_arg("fv_watch", w)) return;
    fv_unwatch(w);
    while (*at) at = &(*at)->next_;
    *at = w;
    w->next_ = NULL;
}

FL_PRIVATE bool fv__others_watch(const fv_watcher *w) {
    const fv_watcher *other = fv__watchers;
    while (other && other->leaf_ready == w->leaf_ready) other = other->next_;
    return other != NULL;
}

/* x's gradient of this pass is final. */
static void fv__say_ready(fl_var *x) {
    fv_keep(x);
    for (fv_watcher *w = fv__watchers, *next; w && !fl_error(); w = next) {
        next = w->next_;
        w->leaf_ready(w, x);
    }
    fv_drop(x);
}

static void fv__say_end(void) {
    fl_scope s = fl_scope_begin();
    for (fv_watcher *w = fv__watchers, *next; w; w = next) {
        next = w->next_;
        w->end(w, fl_error());
    }
    fl_scope_end(&s);
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

/* Lets go of the gradient and those of several results: none may have come. */
static void fv__drop_grad(fl_node *n) {
    fl_var *g = n->grad;
    n->grad = NULL;
    fv_drop(g);
    for (int i = 0; i < n->n_results; i++) {
        fv_drop(n->results[i]);
        n->results[i] = NULL;
    }
}

static void fv__drop_edges(fl_node *n) {
    fl_node **in = fv__edges(n);
    for (int i = 0; i < n->n_in; i++) {
        fl_node *to = in[i];
        in[i] = NULL;
        if (to) fl_obj_drop(&to->obj);
    }
}

/* Lets go of all but the edges. */
static void fv__node_clear(fl_node *n) {
    fv__saved *saved = fv__saves(n);
    for (int i = 0; i < n->n_saved; i++) {
        fv_drop(saved[i].var);
        saved[i].var = NULL;
    }
    fl_drop(n->out);
    n->out = NULL;
    fv_drop(n->hook_copy);
    n->hook_copy = NULL;
    if (n->made) fl_obj_drop(&n->made->obj);
    n->made = NULL;
    if (n->free_args) n->free_args(n->args);
    n->free_args = NULL;
    if (n->heap_args) fl_heap_free(n->args);
    n->args = NULL;
    n->heap_args = false;
    if (n->n_results) fl_heap_free(n->results);
    n->results = NULL;
    n->n_results = 0;
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
        fv__drop_edges(n);
        fl_obj_free(&n->obj);
    }
    fv__dying.busy = false;
}

static fl_var fv__output[FV_MAX];
FL_PRIVATE fl_var *fv__out(int k) {
    return &fv__output[k];
}

static bool fv__is_output(const fl_var *x) {
    return x >= fv__output && x < fv__output + FV_MAX;
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
    n->args = inside ? (char *)n + args_at : fl_heap_alloc(s->bytes);
    n->heap_args = !inside;
    if (n->args) {
        memcpy(n->args, s->args, s->bytes);
        n->free_args = s->free_args;
        return n;
    }
    fl_obj_drop(&n->obj);
    return NULL;
}

/* Where the gradient of x goes; NULL after fl_fail. */
static fl_node *fv__grad_target(fl_var *x) {
    static const fv_record_opts sink = {.name = "a leaf"};
    if (x->node) return x->node;
    fl_node *to = __atomic_load_n(&x->sink_, __ATOMIC_ACQUIRE), *other = NULL;
    if (to || !(to = fv__node_new(&sink))) return to;
    to->leaf = x;
    if (__atomic_compare_exchange_n(&x->sink_, &other, to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return to;
    fl_obj_drop(&to->obj); /* another thread has used the leaf for the first time */
    return other;
}

/* The same with a reference for the edge. */
static fl_node *fv__end_of(fl_var *x) {
    fl_node *to = fv__grad_target(x);
    if (to) fl_obj_keep(&to->obj);
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
    FV__LARGE = 1 << 16, /* bytes of a value from which computing it again pays on a processor */
    FV__DEEPEST = 2      /* of a long chain of such values every third is kept */
};
static int64_t fv__recompute_from = -1; /* atomic */

FL_API int64_t fl_set_recompute(int64_t bytes) {
    return __atomic_exchange_n(&fv__recompute_from, bytes < 0 ? -1 : bytes, __ATOMIC_RELAXED);
}

static bool fv__is_large(const fl_tensor *t) {
    int64_t from = __atomic_load_n(&fv__recompute_from, __ATOMIC_RELAXED);
    if (from < 0) from = t->buffer && !t->buffer->device->host ? 0 : FV__LARGE;
    return from && fl_numel(t) * (int64_t)fl_dtype_size(t->dtype) >= from;
}

/* Can the node that made x, operand k of n, make it again when n's backward wants it? Not if it was
   written to since. */
static bool fv__recomputable(const fl_node *n, int k, const fl_var *x) {
    return k >= 0 && x->node && x->node->recompute && fv__edges(n)[k] == x->node &&
           fl_version_of(x->value) == x->node->version;
}

static int fv__operand_of(const fv_record_opts *s, const fl_var *x) {
    if (fv__is_output(x)) return (int)(fv__output - x) + FV__OUTPUT;
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
    if (!s->recompute || !fv__is_large(value)) return;
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

static bool fv__save(fl_node *n, const fv_record_opts *s, fl_tensor *const *value) {
    const int count = s->saved.n - (n->recompute ? 0 : s->n_recompute_only);
    for (int i = 0; i < count; i++) {
        fl_var *x = s->saved.v[i];
        fv__saved *to = fv__saves(n) + i;
        if (!x) continue;
        to->operand = fv__operand_of(s, x);
        const bool output = to->operand <= FV__OUTPUT;
        fl_tensor *t = output ? value[FV__OUTPUT - to->operand] : x->value;
        to->version = fl_version_of(t);
        to->recompute = output ? n->recompute != NULL : fv__recomputable(n, to->operand, x);
        if (to->recompute) continue;
        if (!output) to->var = fv_keep(x);
        else if (n->n_results && !(to->var = fv_keep(fv_const(t)))) return false;
        else if (!n->n_results && !n->out) n->out = fl_keep(t);
    }
    return true;
}

/* Is a result of these inputs to be recorded? */
static inline bool fv__tracks(const fl_tensor *value, fv_list in) {
    bool any = false;
    if (!fl_grad_enabled() || !fl_dtype_is_float(value->dtype)) return false;
    for (int i = 0; i < in.n; i++) any |= in.v[i] && in.v[i]->requires_grad;
    return any;
}

/* *s with name, backward function and size of the arguments of its op; NULL after an error. */
static const fv_record_opts *fv__of_op(const fv_record_opts *s, fv_record_opts *room) {
    const fl_op_info *info = fl_op_get_info(s->op);
    if (!info) return fl_err_null("fv_record_opt: there is no op %d", s->op);
    *room = *s;
    room->name = info->name;
    room->back = info->gradient;
    room->bytes = s->args ? info->args_size : 0;
    return room;
}

/* For a record that is not made. */
static void fv__free_args(const fv_record_opts *s) {
    if (s && s->free_args) s->free_args((void *)(uintptr_t)s->args);
}

/* The node of one result, or of several (0: one), with a reference; NULL after fl_fail. It owns the
   arguments, which an error frees. */
static fl_node *fv__record(const fv_record_opts *s, fl_tensor *const *value, int several) {
    fl_node *n = fv__node_new(s);
    if (!n) return fv__free_args(s), NULL;
    n->made = fl_provenance_here();
    if (several) {
        const size_t bytes = (size_t)several * sizeof *n->results;
        if ((n->results = fl_heap_alloc(bytes))) memset(n->results, 0, bytes);
        n->n_results = n->results ? (uint8_t)several : 0;
    }
    if ((!several || n->results) && fv__connect(n, s)) {
        if (!several) fv__decide_recompute(n, s, value[0]);
        n->version = fl_version_of(value[0]);
        if (fv__save(n, s, value)) return n;
    }
    fl_obj_drop(&n->obj);
    return NULL;
}

FL_API fl_var *fv_record_opt(fl_tensor *value, const fv_record_opts *s) {
    fv_record_opts of_op;
    const fv_record_opts *given = s;
    if (!value || (s->op && !s->back && !(s = fv__of_op(s, &of_op)))) return fv__free_args(given), NULL;
    fl_var *y = fv_const(value);
    if (!y || !fv__tracks(value, s->in)) return fv__free_args(s), y;
    if (!(y->node = fv__record(s, &value, 0))) return fl_raise();
    y->requires_grad = true;
    return y;
}

static void fv__added_back(fl_node *n, fl_var *dy) {
    for (int i = 0; i < 2; i++)
        if (fv_needs(n, i)) fv_add_grad(n, i, dy);
}

/* a + b, of one shape and dtype, as a record of its own: fv_add is above the tape. */
static fl_var *fv__added(fl_var *a, fl_var *b) {
    return fv_record_args("add", fl_binary_op(FL_OP_add, a->value, b->value), fv__added_back, FV_IN(a, b), FV_NONE,
                          NULL, 0);
}

/* ---- several results ---- */

/* The backward of a port: hands a result's gradient to the node, and lets it run. */
static void fv__port_back(fl_node *port, fl_var *dy) {
    fl_node *n = fv__edges(port)[0];
    fl_var **to = &n->results[*(const int *)port->args], *old = *to;
    fl_var *g = old ? fv__added(old, dy) : dy;
    if (!g) return;
    *to = fv_keep(g);
    fv_drop(old);
    if (!n->grad) n->grad = fv_keep(g);
}

/* y becomes result k of n: by a port, a node between the two that backward comes to before n. */
static bool fv__connect_result(fl_var *y, fl_node *n, int k) {
    static fl_var *const none[1];
    fl_node *port = fv__node_new(&(fv_record_opts){
        .name = n->name, .back = fv__port_back, .in = {1, none}, .args = &k, .bytes = sizeof k});
    if (!port) return false;
    fl_obj_keep(&n->obj);
    fv__edges(port)[0] = n;
    y->node = port;
    y->requires_grad = true;
    return true;
}

FL_API bool fv_record_several(int count, fl_tensor *const *value, fl_var **y, const fv_record_opts *s) {
    if (!fl_given(value, "fv_record_several", "the values") ||
        !fl_given(y, "fv_record_several", "the results") ||
        !fl_given(s, "fv_record_several", "the options")) return false;
    fv_record_opts of_op;
    const fv_record_opts *given = s;
    fl_var *made[FV_MAX] = {0};
    bool tracks = false;
    fl_quiet(1); /* a handler that jumps must not lose the node */
    bool ok = !s->op || s->back || (s = fv__of_op(s, &of_op));
    if (ok && (count < 1 || count > FV_MAX))
        ok = fl_fail("fv_record_several: %s has %d results, at most %d", s->name, count, FV_MAX);
    for (int k = 0; ok && k < count; k++) {
        ok = (made[k] = fv_const(value[k])) != NULL;
        tracks |= ok && fv__tracks(value[k], s->in);
    }
    fl_node *n = ok && tracks ? fv__record(s, value, count) : NULL;
    if (!ok || !tracks) fv__free_args(given);
    if (ok && tracks) {
        ok = n != NULL;
        for (int k = 0; ok && k < count; k++)
            if (fl_dtype_is_float(value[k]->dtype)) ok = fv__connect_result(made[k], n, k);
        if (n) fl_obj_drop(&n->obj);
    }
    fl_quiet(-1);
    if (ok) memcpy(y, made, (size_t)count * sizeof *y);
    else fl_raise();
    return ok;
}

FL_API fl_var *fv_grad_of(fl_node *n, int k) {
    if (!fl_given(n, "fv_grad_of", "the node")) return NULL;
    return k >= 0 && k < n->n_results ? n->results[k] : NULL;
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
    if (!info) return fl_err_null("fv_record_op: there is no op %d", op);
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

/* Result k of several, whose value is t, likewise. */
static fl_var *fv__result_of(fl_node *n, fl_tensor *t, int k) {
    fl_var *y = fv_const(t);
    if (!y || !fl_grad_enabled() || fv__connect_result(y, n, k)) return y;
    return fl_raise();
}

FL_API fl_var *fv_saved(fl_node *n, int i) {
    if (!fl_given(n, "fv_saved", "the node")) return NULL;
    fv__text text;
    char what[40];
    if (i < 0 || i >= n->n_saved) {
        fl_fail("fv_saved: %s saved %d values, there is no number %d", n->name, n->n_saved, i);
        return fl_raise();
    }
    const fv__saved *s = fv__saves(n) + i;
    if (s->recompute) {
        fl_node *from = s->operand <= FV__OUTPUT ? n : fv__edges(n)[s->operand];
        if (!from->out) from->out = fl_keep(from->recompute(from));
        return fv__output_of(from, from->out);
    }
    fl_tensor *t = s->var ? s->var->value : s->operand <= FV__OUTPUT ? n->out : NULL;
    if (!t) return NULL;
    if (fl_version_of(t) == s->version) {
        if (!s->var) return fv__output_of(n, n->out);
        return s->operand <= FV__OUTPUT ? fv__result_of(n, t, FV__OUTPUT - s->operand) : s->var;
    }
    if (s->operand >= 0) snprintf(what, sizeof what, "operand %d of", s->operand);
    else if (s->operand <= FV__OUTPUT) snprintf(what, sizeof what, "the result of");
    else snprintf(what, sizeof what, "saved value %d of", i);
    fl_fail("fl_backward: %s %s, %s, was written in place after it was saved", what, n->name,
            fv__describe(t, &text));
    return fl_raise();
}

FL_API const void *fv_args(const fl_node *n) {
    return fl_given(n, "fv_args", "the node") ? n->args : NULL;
}

FL_API int fv_in_count(const fl_node *n) {
    return fl_given(n, "fv_in_count", "the node") ? n->n_in : 0;
}

FL_API int fv_saved_count(const fl_node *n) {
    return fl_given(n, "fv_saved_count", "the node") ? n->n_saved : 0;
}

FL_API fl_op fv_op(const fl_node *n) {
    return fl_given(n, "fv_op", "the node") ? n->op : (fl_op)0;
}

FL_API const char *fv_node_name(const fl_node *n) {
    return fl_given(n, "fv_node_name", "the node") ? n->name : NULL;
}

FL_API fl_node *fv_in_node(const fl_node *n, int i) {
    if (!fl_given(n, "fv_in_node", "the node")) return NULL;
    return i >= 0 && i < n->n_in ? fv__edges(n)[i] : NULL;
}

FL_API fl_var *fv_leaf_of(const fl_node *n) {
    return fl_given(n, "fv_leaf_of", "the node") ? n->leaf : NULL;
}

FL_API const char *fv_made_by(const fl_node *n) {
    if (!fl_given(n, "fv_made_by", "the node")) return NULL;
    return n->made ? n->made->text : "";
}

FL_API bool fv_needs(const fl_node *n, int i) {
    if (!fl_given(n, "fv_needs", "the node")) return false;
    if (i < 0 || i >= n->n_in) return false;
    const fl_node *to = fv__edges(n)[i];
    return to && to->wanted;
}

FL_API fl_shape fv_in_shape(const fl_node *n, int i) {
    if (!fl_given(n, "fv_in_shape", "the node")) return FL_SCALAR_SHAPE;
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

/* Has x's value `handles` handles in all, x's own among them, and does nobody else hold that or x?
   Storage of a backend's own is held by a handle, and that by its views. */
static bool fv__is_sole(const fl_var *x, int handles) {
    const fl_tensor *t = x->value;
    const int refs = __atomic_load_n(&t->obj.refs_, __ATOMIC_ACQUIRE);
    if (t->weak || __atomic_load_n(&x->obj.refs_, __ATOMIC_ACQUIRE) != 1) return false;
    if (!t->buffer) return !t->base_ && refs == handles;
    return refs == 1 && __atomic_load_n(&t->buffer->refs_, __ATOMIC_ACQUIRE) == handles;
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
    for (int i = 0; i < n->n_results; i++) shared |= fv__same_storage(g, fv_value(n->results[i]));
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

/* t += g, where t is a tensor of its own. */
static bool fv__add_into(fl_tensor *t, fl_tensor *g) {
    return fl_call_into(FL_OP_add, t, t, g, NULL) != NULL;
}

/* sum + g, in place where nobody else sees sum. */
static fl_var *fv__sum_of(fl_var *sum, fl_var *g) {
    fl_tensor *t = sum->value;
    const bool alike = t->backend == g->value->backend && !g->value->weak && fv__alike(t, g->value);
    if (fl_grad_enabled() || !alike || !fv__is_sole(sum, 1) || !fv__is_dense(t))
        return fv__added(sum, g);
    return fv__add_into(t, g->value) ? sum : NULL;
}

static void fv__set_sum(fl_node *to, fl_var *g) {
    fl_var *old = to->grad;
    to->grad = fv_keep(g);
    fv_drop(old);
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
    if (g) fv__set_sum(to, g);
}

/* What the gradient of input i is so far, in a tensor that nobody else sees: as it is, copied, or zeros. */
static fl_var *fv__own_sum(fl_node *n, int i) {
    fl_var *sum = fv__edges(n)[i]->grad;
    if (!sum) {
        fl_tensor *like = fl_cast(n->grad->value, (fl_dtype)n->dtype[i]);
        return like ? fv_const(fl_new_full(like, fv_in_shape(n, i), 0)) : NULL;
    }
    return fv__is_sole(sum, 1) && fv__is_dense(sum->value) ? sum : fv_const(fl_clone(sum->value));
}

FL_API bool fv_add_grad_part(fl_node *n, int i, fl_var *g, fv_part_fn part) {
    if (!g || !fv_needs(n, i)) return true;
    if (fl_grad_enabled()) return false;
    fl_node *to = fv__edges(n)[i];
    const bool first = !to->grad;
    fl_var *sum = fv__own_sum(n, i);
    fl_tensor *at = sum ? part(n, sum->value) : NULL;
    if (at && at->copied) return false;
    fl_tensor *t = at ? fl_cast(g->value, at->dtype) : NULL;
    if (!t || (first ? !fl_assign(at, t) : !fv__add_into(at, t))) fl_raise();
    else if (sum != to->grad) fv__set_sum(to, sum);
    return true;
}

/* ---- backward ---- */

typedef struct fv__outer {
    fl_node *node;
    fl_var *grad;
} fv__outer;

/* One pass. Nodes are put in order first (Kahn's algorithm, no recursion), then visited. */
typedef struct fv__pass fv__pass;
struct fv__pass {
    const char *who; /* for messages */
    fl_node **node;
    int64_t n, cap;
    fv_list roots, given;
    fl_tensor *grad; /* given, of fl_backward */
    /* Of fl_grads: only what leads to a target, one of these, is visited, and gradients stay there. */
    fv_list targets;
    bool retain, create_graph;
    fv__outer *outer; /* what a pass around this one has brought to nodes of both, until this one is over */
    int64_t n_outer, outer_cap;
    fv__pass *around;
};

static _Thread_local fv__pass *fv__running;

static void fv__mark_targets(const fv__pass *p, bool on) {
    for (int i = 0; p && i < p->targets.n; i++)
        if (p->targets.v[i]->requires_grad) fv__grad_target(p->targets.v[i])->target = on;
}

/* A leaf is in passes of one thread at a time: those of two would mix what they add up there. */
static bool fv__claim(fv__pass *p, fl_node *sink) {
    void *other = NULL;
    if (__atomic_compare_exchange_n(&sink->pass, &other, p, false, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE))
        return true;
    for (const fv__pass *mine = fv__running; mine; mine = mine->around)
        if (mine == other) return true;
    return other == p || fl_fail("%s: another thread runs backward through the same leaf: train a net in one "
                                 "thread at a time, or give each a copy", p->who);
}

static void fv__release(const fv__pass *p, fl_node *n) {
    if (!n->back && n->pass == p) __atomic_store_n(&n->pass, NULL, __ATOMIC_RELEASE);
}

static void fv__forget(fv__pass *p) {
    for (int64_t i = 0; i < p->n; i++) {
        p->node[i]->seen = false;
        p->node[i]->pending = 0;
        fv__release(p, p->node[i]);
    }
}

static bool fv__is_whole(const fl_node *n) {
    return !n->spent || fl_fail("fl_backward: the graph behind %s was freed by an earlier backward; "
                                "pass .retain_graph = true there", n->name);
}

static bool fv__find(fv__pass *p, fl_node *to) {
    if (!to->back && !fv__claim(p, to)) return false;
    if (!to->seen) {
        if (!fv__is_whole(to)) return false;
        if (p->n == p->cap && !fl_heap_grow(&p->node, &p->cap, p->n + 64, sizeof *p->node)) return false;
        to->seen = true;
        p->node[p->n++] = to;
    }
    to->pending++;
    return true;
}

/* All nodes behind the roots, with the number of edges that lead to each, and one for each root. */
static bool fv__search(fv__pass *p) {
    bool ok = true;
    for (int i = 0; ok && i < p->roots.n; i++)
        if (p->roots.v[i]->requires_grad) ok = fv__find(p, fv__grad_target(p->roots.v[i]));
    for (int64_t i = 0; ok && i < p->n; i++) {
        fl_node *n = p->node[i], **in = fv__edges(n);
        for (int k = 0; ok && k < n->n_in; k++)
            if (in[k]) ok = fv__find(p, in[k]);
    }
    if (!ok) fv__forget(p);
    return ok;
}

static void fv__put(fv__pass *p, fl_node *to) {
    if (--to->pending == 0) p->node[p->n++] = to;
}

static bool fv__leads_on(const fl_node *n) {
    fl_node **in = fv__edges(n);
    bool wanted = false;
    for (int k = 0; k < n->n_in; k++) wanted |= in[k] && in[k]->wanted;
    return wanted;
}

/* Orders them so that a node comes after all that lead to it. */
static void fv__sort(fv__pass *p) {
    p->n = 0;
    for (int i = 0; i < p->roots.n; i++)
        if (p->roots.v[i]->requires_grad) fv__put(p, fv__grad_target(p->roots.v[i]));
    for (int64_t i = 0; i < p->n; i++) {
        fl_node *n = p->node[i], **in = fv__edges(n);
        n->seen = false;
        for (int k = 0; k < n->n_in; k++)
            if (in[k]) fv__put(p, in[k]);
    }
    for (int64_t i = p->n; i-- > 0;) {
        fl_node *n = p->node[i];
        n->wanted = !p->targets.n || n->target || fv__leads_on(n);
    }
}

/* Puts the gradient that a pass around p has brought to n so far aside. */
static bool fv__put_aside(fv__pass *p, fl_node *n) {
    if (!n->grad) return true;
    if (p->n_outer == p->outer_cap &&
        !fl_heap_grow(&p->outer, &p->outer_cap, p->n_outer + 1, sizeof *p->outer))
        return false;
    p->outer[p->n_outer++] = (fv__outer){n, n->grad};
    n->grad = NULL;
    return true;
}

/* Where p is to bring its own; p is of fl_grads: fl_backward takes along what a leaf has. */
static bool fv__put_all_aside(fv__pass *p) {
    bool ok = true;
    for (int i = 0; ok && i < p->targets.n; i++)
        if (p->targets.v[i]->requires_grad) ok = fv__put_aside(p, fv__grad_target(p->targets.v[i]));
    for (int64_t i = 0; ok && p->targets.n && i < p->n; i++)
        if (p->node[i]->wanted) ok = fv__put_aside(p, p->node[i]);
    return ok;
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

/* Adds the gradient that arrived at a sink, if any, to its leaf's. That one shares no storage. */
static void fv__accumulate(fl_node *sink) {
    fl_var *x = sink->leaf, *g = sink->grad;
    if (!x || !x->requires_grad) return;
    if (g && !fl_grad_enabled()) {
        fl_tensor *stored = fv__stored_as(g->value, x->value);
        if (stored != g->value && !(g = fv_const(stored))) return;
    }
    if (g && x->grad && !(g = fv__sum_of(x->grad, g))) return;
    if (g && g == sink->grad && !x->grad && fv__alike(g->value, x->value)) { /* its reference moves */
        x->grad = g;
        sink->grad = NULL;
    } else if (g && !fv_set_grad(x, g)) {
        return;
    }
    if (g && x->hooks_) fv__call_hooks(x);
    if (fv__watchers && !fl_error()) fv__say_ready(x);
}

static void fv__call_hooks_of(fl_node *n) {
    fl_var *x = fv_keep(n->hook_var ? n->hook_var : n->hook_copy), *before = x->grad;
    x->grad = n->grad;
    fv__call_hooks(x);
    n->grad = x->grad;
    x->grad = before;
    fv_drop(x);
}

static void fv__describe_node(const void *of, char *buf, size_t size) {
    snprintf(buf, size, "%s", fv_made_by(of));
}

/* A target's gradient is held, so that nothing is added in place to what the backward hands on. */
static void fv__visit(const fv__pass *p, fl_node *n, bool on) {
    const bool told = n->back && n->made; /* to those who asked for notes */
    fl_scope s =
        told ? fl_scope_at(&(fl_error_place){NULL, n, fv__describe_node, n->name}) : fl_scope_begin();
    if (fl_error()) return;
    if (n->hook_copy) fv__call_hooks_of(n);
    fl_var *dy = n->grad, *held = n->target ? fv_keep(dy) : NULL;
    if (n->back && dy && on && fv__is_whole(n)) n->back(n, dy);
    if (!n->back && !p->targets.n) fv__accumulate(n);
    fv_drop(held);
    fl_scope_end(&s);
}

/* Visits until the first error. Nodes hold each other by edges until all are done; then those of spent ones
   go, from the leaves on, so that none is looked at that went. A pass within this one leaves all edges. */
static void fv__run(fv__pass *p) {
    for (int64_t i = 0; i < p->n; i++) {
        fl_node *n = p->node[i];
        const bool on = n->wanted && (!n->target || fv__leads_on(n));
        if (n->wanted && (n->grad || (!n->back && fv__watchers)) && !fl_error()) fv__visit(p, n, on);
        if (n->wanted && !n->target) fv__drop_grad(n);
        if (!p->retain && n->back && on && !fl_error()) {
            n->spent = true;
            fv__node_clear(n);
        } else if (n->recompute) {
            fl_drop(n->out);
            n->out = NULL;
        }
        n->wanted = true; /* for a pass around this one */
        fv__release(p, n);
    }
    for (int64_t i = p->n; !p->around && i-- > 0;)
        if (p->node[i]->spent) fv__drop_edges(p->node[i]);
}

/* The gradient that the pass starts with at root k; NULL after an error. */
static fl_var *fv__seed(const fv__pass *p, int k) {
    fv__text a, b;
    const fl_var *root = p->roots.v[k];
    fl_var *given = k < p->given.n ? p->given.v[k] : fv_const(p->grad);
    fl_tensor *v = root->value;
    const bool grads = !strcmp(p->who, "fl_grads"), leaf = !root->node && !p->targets.n;
    if (!given && fl_numel(v) != 1)
        fl_fail("%s: the root is %s; reduce it to one element%s", p->who, fv__describe(v, &a),
                grads ? " or pass .given" : p->targets.n ? "" : " or pass .grad");
    else if (given && !fl_same_shape(given->value, v))
        fl_fail("%s: %s is %s, the root %s", p->who, grads ? ".given" : ".grad",
                fv__describe(given->value, &a), fv__describe(v, &b));
    else if (!given) return fv_const(fl_full_like(v, 1));
    else /* a leaf's gradient has storage of its own */
        return fv_cast(leaf ? fv_const(fl_clone(given->value)) : given, v->dtype);
    return NULL;
}

static void fv__start(const fv__pass *p) {
    for (int k = 0; k < p->roots.n && !fl_error(); k++) {
        if (!p->roots.v[k]->requires_grad) continue;
        fl_node *to = fv__grad_target(p->roots.v[k]);
        fl_var *g = fv__seed(p, k);
        if (g && to->wanted && to->grad) g = fv__sum_of(to->grad, g);
        if (g && to->wanted) fv__set_sum(to, g);
    }
}

/* The nodes of roots and targets exist from here on. */
static bool fv__has_goals(fv_list of) {
    for (int i = 0; i < of.n; i++)
        if (of.v[i]->requires_grad && !fv__grad_target(of.v[i])) return false;
    return true;
}

/* Takes the targets' gradients, with a reference each; gives back what was put aside. */
static void fv__take(fv__pass *p, fl_var **grads) {
    for (int i = 0; i < p->targets.n; i++)
        grads[i] = p->targets.v[i]->requires_grad ? fv_keep(fv__grad_target(p->targets.v[i])->grad) : NULL;
    for (int i = 0; i < p->targets.n; i++)
        if (p->targets.v[i]->requires_grad) fv__drop_grad(fv__grad_target(p->targets.v[i]));
    for (int64_t i = 0; i < p->n_outer; i++) p->outer[i].node->grad = p->outer[i].grad;
}

/* Runs a pass, in a scope of its own; the error handler is not called in its midst. grads: with a
   reference each. False after fl_fail. */
static bool fv__pass_run(fv__pass *p, fl_var **grads) {
    uint64_t flags = fl_flags();
    fl_scope s = fl_scope_begin();
    fl_quiet(1);
    fl_set_flags(flags & ~FL_AUTOCAST_FLAGS);
    fl_no_grad(!p->create_graph);
    if (!fl_error() && fv__has_goals(p->roots) && fv__has_goals(p->targets) && fv__search(p)) {
        fv__mark_targets(fv__running, false);
        fv__mark_targets(p, true);
        p->around = fv__running;
        fv__running = p;
        fv__sort(p);
        if (fv__put_all_aside(p)) fv__start(p);
        fv__run(p);
        fv__take(p, grads);
        fv__running = p->around;
        fv__mark_targets(p, false);
        fv__mark_targets(fv__running, true);
    }
    fl_heap_free(p->outer);
    fl_heap_free(p->node);
    fl_scope_end(&s);
    fl_set_flags(flags); /* the scope may not have begun */
    if (!p->targets.n && fv__watchers) fv__say_end();
    fl_quiet(-1);
    return !fl_error();
}

FL_API bool fl_backward_opt(fl_var *root, fl_backward_opts o) {
    if (fl_error()) return false;
    if (!root || !root->requires_grad) {
        fl_fail("fl_backward: the root %s",
                root ? "does not depend on anything that requires a gradient" : "is NULL");
        fl_raise();
        return false;
    }
    fv__pass p = {.who = "fl_backward", .roots = {1, &root}, .grad = o.grad,
                  .retain = o.retain_graph || o.create_graph, .create_graph = o.create_graph};
    if (fv__pass_run(&p, NULL)) return true;
    fl_raise();
    return false;
}

/* A pass of fl_grads, whose lists are checked; found: [p->targets.n], owned by the innermost scope. */
static bool fv__grads(fv__pass *p, fl_var **found) {
    bool ok = fv__pass_run(p, found);
    for (int i = 0; i < p->targets.n; i++)
        if (!ok) fv_drop(found[i]);
        else if (found[i]) ok = fl_scope_adopt(&found[i]->obj);
    return ok;
}

FL_API fl_var *fl_grad(fl_var *root, fl_var *x, bool create_graph) {
    fl_var *g = NULL;
    if (fl_error()) return NULL;
    if (!root || !x) {
        fl_fail("fl_grad: the %s is NULL", root ? "variable" : "root");
        return fl_raise();
    }
    if (!root->requires_grad || !x->requires_grad) return NULL;
    fv__pass p = {.who = "fl_grad", .roots = {1, &root}, .targets = {1, &x}, .retain = true,
                  .create_graph = create_graph};
    return fv__grads(&p, &g) ? g : fl_raise();
}

FL_API bool fl_grads_opt(fv_list outputs, fv_list inputs, fl_var **grads, fl_grads_opts o) {
    if (fl_error()) return false;
    fl_quiet(1);
    bool ok = fv_check_list("fl_grads", "output", outputs) && fv_check_list("fl_grads", "input", inputs);
    if (ok && !grads) ok = fl_fail("fl_grads: the array of gradients is NULL");
    if (ok && o.given.n && o.given.n != outputs.n)
        ok = fl_fail("fl_grads: .given has %d gradients for %d outputs", o.given.n, outputs.n);
    fl_var **found = ok ? fl_heap_alloc((size_t)inputs.n * sizeof *found) : NULL;
    fv__pass p = {.who = "fl_grads", .roots = outputs, .given = o.given, .targets = inputs,
                  .retain = o.retain_graph || o.create_graph, .create_graph = o.create_graph};
    if (found) memset(found, 0, (size_t)inputs.n * sizeof *found);
    ok = found && fv__grads(&p, found);
    for (int i = 0; ok && i < inputs.n && !o.allow_unused; i++)
        if (!found[i])
            ok = fl_fail("fl_grads: no output depends on input %d; .allow_unused = true gives it NULL", i);
    if (ok) memcpy(grads, found, (size_t)inputs.n * sizeof *grads);
    fl_heap_free(found);
    fl_quiet(-1);
    if (!ok) fl_raise();
    return ok;
}

#endif /* FL_AUTOGRAD_IMPL */
#endif /* implementation */
#include "fl/autograd/accumulate.h"
#include "fl/autograd/forward.h"
#include "fl/tools/gradcheck.h"
#include "fl/autograd/tape.h"
/* MIT licence: see LICENSE. */
