/* fl_autograd.h - autograd: variables, the tape, reverse-mode differentiation of the public tensor ops

   A fl_var holds a value, its gradient and the node that produced it. fv_ functions run the fl_ op of the
   same name and, if an operand requires a gradient, record a node. fl_backward visits the nodes in reverse
   order and frees them on the way.

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
   Files (included automatically): fl/autograd/forward.h forward mode, fl/tools/gradcheck.h gradient check by
   finite differences and Jacobians, fl/autograd/tape.h the tape as a Graphviz graph,
   fl/autograd/accumulate.h cast, expand and sum to a shape on variables.

   Concepts
     Lifetime    As for tensors: a fl_var * that a function returns is owned by the innermost scope; fv_keep
                 what you store. A stored variable keeps its whole graph alive: store fv_detach(h) to avoid
                 that.
     Threads     A graph belongs to the thread that records it. Several threads may read the same parameters
                 (evaluation, best in no-grad regions); backward passes through the same leaves must run in
                 one thread at a time, which is checked.
     Saved       A node saves only the values that its backward reads, and releases them after backward
                 (unless retained).
     Order       C does not specify the order in which arguments are evaluated: f(D(a), D(b)) may run D(b)
                 first. Use named variables where running statistics or random generators matter.
     Versions    Every in-place write increments the version of the storage. Backward fails, naming op and
                 tensor, if a saved value was written after it was saved. There are no in-place fv_ ops;
                 write to a variable's tensor in no-grad regions. */
#include "fl_tensor.h"
#ifndef FL_AUTOGRAD_H
#define FL_AUTOGRAD_H

#ifdef __cplusplus
extern "C" {
#endif

/* >>variables ---------------------------------------------------------------------------------- */

/* A gradient hook: x->grad is complete, and may be replaced with fv_set_grad. */
typedef void (*fv_hook_fn)(fl_var *x, void *user);
typedef struct fv_hooks fv_hooks;
/* A variable: a tensor in the graph. */
struct fl_var {
    fl_obj obj;
    fl_tensor *value;
    fl_var *grad;         /* gradient of a leaf, set by fl_backward; NULL before */
    fl_node *node;        /* the node that produced it; NULL for leaves */
    bool requires_grad;
    /* private */
    fv_hooks *hooks_;
    fl_node *sink_;       /* of a leaf: node that accumulates its gradient, created at the first use */
};

/* A constant, without gradient. Adds a reference to t. NULL passes. */
FL_API fl_var *fv_const(fl_tensor *t);
/* A leaf that requires a gradient; float dtypes only. Adds a reference to t. NULL passes. */
FL_API fl_var *fv_param(fl_tensor *t);
/* A constant weak number, as fl_num. */
FL_API fl_var *fv_num(double value);
/* x's tensor, borrowed; NULL for NULL. */
FL_API fl_tensor *fv_value(const fl_var *x);
/* The tensor of x's gradient, borrowed; NULL if none. */
FL_API fl_tensor *fv_grad(const fl_var *x);
/* A constant with the same value, without the graph. */
FL_API fl_var *fv_detach(fl_var *x);
/* Adds a reference; returns x. NULL passes. */
FL_API fl_var *fv_keep(fl_var *x);
/* Removes a reference. NULL is allowed. */
FL_API void fv_drop(fl_var *x);
/* As fl_scope_return. */
FL_API fl_var *fv_scope_return(fl_scope *s, fl_var *x);
/* Drops x's gradient. */
FL_API void fv_zero_grad(fl_var *x);
/* Replaces x's gradient by g, which must have the shape and dtype of x. False after an error. */
FL_API bool fv_set_grad(fl_var *x, fl_var *g);
/* Registers fn to be called when x's gradient is complete in a backward pass. Hooks run in order of
   registration; each sees the gradient left by the one before. Returns a number for fv_unhook, from 1; 0
   after an error. fn NULL removes all hooks and returns 0. A hook may add hooks, which then run in the same
   pass, and remove any. */
FL_API int fv_hook(fl_var *x, fv_hook_fn fn, void *user);
/* Removes a hook by its number. */
FL_API void fv_unhook(fl_var *x, int hook);

/* >>recording ---------------------------------------------------------------------------------- */

/* A backward function: given the output's gradient dy, adds to the gradients of the node's inputs by
   fv_add_grad. Runs in its own scope. */
typedef void (*fl_back_fn)(fl_node *n, fl_var *dy);
typedef struct fv_list { int n; fl_var *const *v; } fv_list;
/* The list {n, v}, for use in macro arguments, where the comma of a struct literal would separate
   arguments. */
FL_API fv_list fv_list_of(int n, fl_var *const *v);
/* False after fl_fail if the list is empty or contains NULL. fn and what, the name of an element, are for
   the error text. */
FL_API bool fv_check_list(const char *fn, const char *what, fv_list list);
#define FV_MAX 8 /* maximum of inputs, and of saved values, of a record */
#define FV_LIST(...) FL_LITERAL(fv_list, FL_COUNT(fl_var *, __VA_ARGS__), FL_ARRAY(fl_var *, __VA_ARGS__))
#define FV_IN(...) FV_LIST(__VA_ARGS__)
#define FV_SAVE(...) FV_LIST(__VA_ARGS__)
#define FV_NONE FL_LITERAL(fv_list, 0, NULL)
/* FV_OUT in a save list denotes the output itself, FV_OUT_OF(k) output k of several. */
#define FV_OUT FV_OUT_OF(0)
#define FV_OUT_OF(k) (fv__out(k))
FL_PRIVATE fl_var *fv__out(int k);
/* Records an op: returns the variable of its result `value`, with edges to the inputs `in` and the values
   `saved` for its backward function. At most FV_MAX of each; NULL entries of `in` are omitted optional
   inputs. If no input requires a gradient, or in no-grad regions, nothing is recorded and the result is a
   constant. value NULL passes. NULL after an error. */
FL_API fl_var *fv_record(fl_tensor *value, fl_back_fn back, fv_list in, fv_list saved);
/* fv_record with `bytes` of plain arguments, copied into the node and read by fv_args. name: for error
   texts, a string literal. */
FL_API fl_var *fv_record_args(const char *name, fl_tensor *value, fl_back_fn back, fv_list in,
                              fv_list saved, const void *args,
                              size_t bytes);
/* All options of a record. */
typedef struct fv_record_opts {
    fl_op op;         /* an op: if back is NULL, its name, gradient and args_size are used */
    const char *name; /* for error texts, a string literal */
    fl_back_fn back;
    fv_list in, saved; /* at most FV_MAX each; NULL entries of `in` are omitted optional inputs */
    unsigned blocked;  /* bit i: input i gets no gradient, because it is zero everywhere */
    /* Recomputes the output from the saved values, for outputs that are cheaper to recompute than to store:
       a large one is stored neither by its node nor by nodes that save it (see fl_set_recompute). NULL:
       stored. */
    fl_tensor *(*recompute)(fl_node *n);
    int n_recompute_only; /* number of values at the end of `saved` that only `recompute` reads */
    const void *args;     /* plain arguments, copied */
    size_t bytes;
    /* Frees resources owned by the arguments, not `args` itself: called exactly once, with the copy after
       backward or when the graph is dropped, or with `args` if nothing is recorded, also after an error.
       NULL: none. */
    void (*free_args)(void *args);
} fv_record_opts;
/* fv_record with options. */
FL_API fl_var *fv_record_opt(fl_tensor *value, const fv_record_opts *o);
/* Records an op with n <= FV_MAX results: y[k] is the variable of value[k]. Its backward runs once, when the
   gradients of all results are complete, and reads them by fv_grad_of; its dy is one of them. `recompute` is
   not supported. False after an error, also if a value[k] is NULL; y is then untouched. */
FL_API bool fv_record_several(int n, fl_tensor *const *value, fl_var **y, const fv_record_opts *o);
/* True if x's value is not stored for backward but recomputed, as are views of it. */
FL_API bool fv_recomputed(const fl_var *x);
/* fv_record for the result of an op, with the gradient and args_size of its fl_op_info. value NULL
   passes. */
FL_API fl_var *fv_record_op(fl_op op, fl_tensor *value, fv_list in, fv_list saved, const void *args);
/* Records value = op(x) for an op of FL_UNARY_OPS whose value was computed as part of a fused op. value NULL
   passes. */
FL_API fl_var *fv_record_formula(fl_op op, fl_var *x, fl_tensor *value);
/* True if the gradient formula of op reads x; otherwise y suffices. */
FL_API bool fv_formula_reads_x(fl_op op);

/* In a backward function: */
/* Saved value i, possibly recomputed; NULL after an error if it was written in place since. */
FL_API fl_var *fv_saved(fl_node *n, int i);
/* The plain arguments; NULL if there are none. */
FL_API const void *fv_args(const fl_node *n);
/* Number of inputs. */
FL_API int fv_in_count(const fl_node *n);
/* Number of saved values. */
FL_API int fv_saved_count(const fl_node *n);
/* The recorded op; FL_OP_NONE if none was given. */
FL_API fl_op fv_op(const fl_node *n);
/* True if input i needs a gradient in this pass. */
FL_API bool fv_needs(const fl_node *n, int i);
/* Shape of input i. */
FL_API fl_shape fv_in_shape(const fl_node *n, int i);
/* The gradient of result k of several; NULL if it is zero, because none arrived. */
FL_API fl_var *fv_grad_of(fl_node *n, int k);
/* dy's tensor if the input's gradient may overwrite it: it is dense and not shared; otherwise NULL. */
FL_API fl_tensor *fv_own_grad(const fl_node *n, const fl_var *dy);
/* Accumulates g into the gradient of input i: sums it to the input's shape if that was broadcast, and casts
   it to its dtype. g NULL has no effect (an error is pending). */
FL_API void fv_add_grad(fl_node *n, int i, fl_var *g);
/* fv_add_grad for ops that return a view of input i: part(n, whole) returns the same view of `whole`, the
   input's gradient, and g is added there in place. So the gradients of many slices of one tensor cost their
   own size, not that of the tensor each. False, without effect, if the pass is recorded or the backend
   copies views: then add g padded with zeros by fv_add_grad. */
typedef fl_tensor *(*fv_part_fn)(fl_node *n, fl_tensor *whole);
FL_API bool fv_add_grad_part(fl_node *n, int i, fl_var *g, fv_part_fn part);

/* To inspect a graph: */
/* Name of a node. */
FL_API const char *fv_node_name(const fl_node *n);
/* The node that produced input i; NULL if the input needs no gradient. */
FL_API fl_node *fv_in_node(const fl_node *n, int i);
/* The leaf of a node without inputs; NULL for other nodes and if the leaf was freed. */
FL_API fl_var *fv_leaf_of(const fl_node *n);
/* The provenance note of a node (fl_provenance_here); "" if none. */
FL_API const char *fv_node_provenance(const fl_node *n);

/* >>backward ----------------------------------------------------------------------------------- */

typedef struct fl_backward_opts {
    fl_opts_guard guard_;
    fl_tensor *grad;    /* gradient of the root; NULL: 1 (the root must have one element) */
    bool retain_graph;  /* keep nodes and saved values for another pass */
    /* Records the backward pass itself, for double backward; implies retain_graph. The gradients of leaves
       then refer to graphs that refer to the leaves, a cycle: call fv_zero_grad afterwards, or use
       fl_grad. */
    bool create_graph;
    char _end;
} fl_backward_opts;
/* Backward pass: adds d root / d leaf to the gradient of every leaf that requires one. Iterative, not
   recursive; nodes and saved values are freed as soon as they are used. False after an error, or if one is
   pending. */
#define fl_backward(...) FL__BACKWARD(__VA_ARGS__, ._end = 0)
#define FL__BACKWARD(root, ...) fl_backward_opt(root, FL_LITERAL(fl_backward_opts, __VA_ARGS__))
FL_API bool fl_backward_opt(fl_var *root, fl_backward_opts o);
/* The gradient of root with respect to one variable, leaf or not, without changing any .grad. create_graph
   as above; the graph is retained. NULL, without an error, if root does not depend on x. */
FL_API fl_var *fl_grad(fl_var *root, fl_var *x, bool create_graph);
/* Gradients of several outputs with respect to several inputs in one pass, as torch.autograd.grad:
     grads[i] = sum over k of given[k] * d outputs[k] / d inputs[i]
   A Hessian-vector product takes first
     fl_grads(FV_LIST(loss), fl_nn_parameters(m), g, .create_graph = true)
   and then, for a direction v, reverse over reverse
     fl_grads(fv_list_of(n, g), params, hv, .given = fv_list_of(n, v))
   or forward over reverse
     fl_jvps(fv_list_of(n, g), params, fv_list_of(n, v), hv, false)
   as in examples/hessian.c. `given` may be differentiated too. False after an error, grads are then
   untouched. */
typedef struct fl_grads_opts {
    fl_opts_guard guard_;
    fv_list given;     /* per output a gradient of its shape; empty or NULL: 1 (outputs of one element) */
    bool retain_graph; /* as for fl_backward; otherwise the visited part of the graph is freed */
    bool create_graph; /* as for fl_backward */
    bool allow_unused; /* inputs that no output depends on get NULL; otherwise they are an error */
    char _end;
} fl_grads_opts;
#define fl_grads(...) FL__GRADS(__VA_ARGS__, ._end = 0)
#define FL__GRADS(outputs, inputs, grads, ...) \
    fl_grads_opt(outputs, inputs, grads, FL_LITERAL(fl_grads_opts, __VA_ARGS__))
FL_API bool fl_grads_opt(fv_list outputs, fv_list inputs, fl_var **grads, fl_grads_opts o);
/* Watchers observe the passes of fl_backward on this thread, as data-parallel gradient reduction does. The
   caller owns the struct, which must stay valid until fv_unwatch. Several are called in order of
   registration. Neither function may be NULL. A pass run inside a backward function is a separate pass;
   fl_grad, fl_grads and fl_jvp, which change no leaf, are not observed. */
typedef struct fv_watcher fv_watcher;
struct fv_watcher {
    /* x->grad is final in this pass and x's hooks have run. Called once per reachable leaf that requires a
       gradient, in the order in which they become ready, also if none arrived (x->grad is then unchanged,
       maybe NULL). Runs within the pass in no-grad mode; an error in it (fl_fail) ends the pass. Not called
       for the remaining leaves after an error. */
    void (*leaf_ready)(fv_watcher *w, fl_var *x);
    /* Called once at the end of each pass, also after an error, whose text is passed, else NULL. Runs in its
       own scope; an error in it makes fl_backward fail. */
    void (*end)(fv_watcher *w, const char *error);
    void *user;
    fv_watcher *next_; /* private */
};
/* Registers a watcher. */
FL_API void fv_watch(fv_watcher *w);
/* Removes it; may be called inside its own functions. */
FL_API void fv_unwatch(fv_watcher *w);
/* True if there is a watcher with a different leaf_ready. */
FL_PRIVATE bool fv__others_watch(const fv_watcher *w);

/* >>modes -------------------------------------------------------------------------------------- */

/* No-grad mode of this thread: nothing is recorded until it is called with false or the scope ends. Returns
   the previous setting. */
FL_API bool fl_no_grad(bool on);
/* True unless in no-grad mode. */
FL_API bool fl_grad_enabled(void);
/* Recomputation: outputs of cheap ops (element-wise ...) of at least `bytes` bytes are recomputed in
   backward instead of stored. 0: never. -1, the default: 64 KiB on the host, where it saves cache and
   memory; never on devices, where it would cost bandwidth. Process-wide; returns the previous setting. */
FL_API int64_t fl_set_recompute(int64_t bytes);

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

/* Ownership. A variable owns references to its value, its gradient and its node. A node owns references to
   the nodes of its inputs (its edges) and to the values that its backward reads (saved), but not to its
   output: an output that backward reads is saved as a tensor, and wrapped in a variable again on request. So
   graphs have no cycles, and a value that nothing reads is freed with its handle. An edge to a leaf ends in
   the leaf's sink, a node without a backward function that is created at the first use of the leaf; its
   pointer to the leaf is weak. A graph belongs to one thread at a time; leaves are shared. */

#define FV__NODE_MAX 1024 /* maximum size of fl_obj_new */
enum { FV__NO_GRAD = 1 }; /* in fl_flags */
enum { FV__OTHER = -1, FV__OUTPUT = -2 }; /* result k of several: FV__OUTPUT - k */

typedef struct fv__saved {
    fl_var *var; /* NULL for the output, which is in node->out (of several, a constant here), for values that
                    are not read, and for recomputed ones */
    uint32_t version;
    int operand; /* index of the input that it is; FV__OTHER, or FV__OUTPUT - k for output k */
    bool recompute; /* recomputed by the node of that operand, or, for the output, by this node */
} fv__saved;

struct fl_node {
    fl_obj obj;
    fl_back_fn back;  /* NULL for the sink of a leaf */
    const char *name; /* for error texts */
    void *args;
    void (*free_args)(void *args); /* NULL: nothing to free */
    fl_op op;        /* the recorded op, FL_OP_NONE if none was given */
    uint32_t version; /* version of the output when it was recorded */
    fl_var *grad;    /* gradient accumulated so far in the running pass */
    fl_tensor *out;     /* the output, if saved; a recomputed one, once it was recomputed */
    fl_tensor *(*recompute)(fl_node *n); /* NULL: the output is stored */
    fl_var **results;   /* of a node with several results: their gradients so far */
    fl_var *leaf;    /* of a sink: its leaf, a weak pointer */
    void *pass;      /* of a sink: the outermost pass that it is in */
    fl_var *hook_var; /* the output variable, if it has hooks; a weak pointer */
    fl_var *hook_copy;    /* copy that carries the hooks after the variable is dropped */
    fl_provenance *made;   /* provenance note, or NULL */
    fl_node *next;   /* next in the drop queue */
    int64_t pending; /* edges to this node from nodes not yet sorted */
    uint8_t n_in, n_saved, ndim[FV_MAX], dtype[FV_MAX];
    uint8_t n_results; /* number of results if several, else 0 */
    uint8_t depth; /* length of the chain of recomputed nodes that ends here */
    bool seen;   /* visited by the search of a pass */
    bool wanted; /* its gradient is needed in the pass */
    bool target; /* target of fl_grads: its gradient stays here */
    bool spent;  /* backward has run and released edges and saved values */
    bool heap_args;
    /* followed in memory by edges, saved values, dims of the inputs, arguments */
};

enum { FV__LARGEST_INPUT = sizeof(void *) + sizeof(fv__saved) + FL_MAX_DIMS * sizeof(int64_t) };
_Static_assert(sizeof(fl_node) + FV_MAX * FV__LARGEST_INPUT <= FV__NODE_MAX,
               "a node must fit in an object");

typedef struct fv__hook {
    fv_hook_fn fn;
    void *user;
    int number;
} fv__hook;

/* Hooks, shared by a variable and the hook_copy of its node. */
struct fv_hooks {
    fl_obj obj;
    fv__hook *at; /* in ascending order of numbers */
    int64_t n, cap;
    int last; /* last number assigned */
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
        fl_fail("fv_param: %s%s cannot have a gradient, which needs a float tensor",
                t->weak ? "the weak number " : "", fv__describe(t, &text));
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

FL_API bool fv_check_list(const char *fn, const char *what, fv_list list) {
    if (list.n < 1 || !list.v) return fl_fail("%s: the list of %ss is empty", fn, what);
    for (int i = 0; i < list.n; i++)
        if (!list.v[i]) return fl_fail("%s: %s %d is NULL", fn, what, i);
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

static bool fv__same_kind(const fl_tensor *a, const fl_tensor *b) {
    return a->dtype == b->dtype && fl_same_shape(a, b);
}

FL_API bool fv_set_grad(fl_var *x, fl_var *g) {
    fv__text a, b;
    if (!x || !g) {
        if (!fl_error()) fl_fail("fv_set_grad: %s is NULL", x ? "the gradient" : "the variable");
    } else if (!fv__same_kind(g->value, x->value)) {
        fl_fail("fv_set_grad: the gradient is %s, expected %s as the variable", fv__describe(g->value, &a),
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

/* x's hooks, created if needed; NULL after fl_fail. */
static fv_hooks *fv__hooks_of(fl_var *x) {
    fl_node *n = x->node;
    if (x->hooks_) return x->hooks_;
    if (!n || !n->hook_copy) return x->hooks_ = fl_obj_new(sizeof *x->hooks_, fv__hooks_drop);
    fl_obj_keep(&n->hook_copy->hooks_->obj);
    return x->hooks_ = n->hook_copy->hooks_;
}

/* A node must be able to call the hooks of its variable after that was dropped: creates hook_copy, a
   variable with the same value and hooks. */
static bool fv__make_hook_copy(fl_node *n, fl_var *x) {
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
    if (ok && x->node && !x->node->spent) ok = fv__make_hook_copy(x->node, x);
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

/* Calls the hooks in order of their numbers, so that hooks may be added and removed meanwhile. */
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

/* Calls the watchers: x's gradient is final in this pass. */
static void fv__notify_leaf_ready(fl_var *x) {
    fv_keep(x);
    for (fv_watcher *w = fv__watchers, *next; w && !fl_error(); w = next) {
        next = w->next_;
        w->leaf_ready(w, x);
    }
    fv_drop(x);
}

static void fv__notify_pass_end(void) {
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

/* Drops the gradient, and those of several results. */
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

/* Releases everything but the edges. */
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
} fv__drop_queue;

/* Frees long chains of nodes by a queue instead of recursion: a node dropped while another is being cleared
   is queued. */
static void fv__node_drop(fl_obj *o) {
    fl_node *n = (fl_node *)o;
    n->next = fv__drop_queue.first;
    fv__drop_queue.first = n;
    if (fv__drop_queue.busy) return;
    fv__drop_queue.busy = true;
    while ((n = fv__drop_queue.first)) {
        fv__drop_queue.first = n->next;
        if (!n->spent) fv__node_clear(n);
        fv__drop_edges(n);
        fl_obj_free(&n->obj);
    }
    fv__drop_queue.busy = false;
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

/* The node that receives the gradient of x: the one that produced it, or a leaf's sink; NULL after
   fl_fail. */
static fl_node *fv__grad_target(fl_var *x) {
    static const fv_record_opts sink = {.name = "a leaf"};
    if (x->node) return x->node;
    fl_node *to = __atomic_load_n(&x->sink_, __ATOMIC_ACQUIRE), *other = NULL;
    if (to || !(to = fv__node_new(&sink))) return to;
    to->leaf = x;
    if (__atomic_compare_exchange_n(&x->sink_, &other, to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return to;
    fl_obj_drop(&to->obj); /* another thread has created the sink meanwhile */
    return other;
}

/* The same with a reference, for an edge. */
static fl_node *fv__edge_target(fl_var *x) {
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
        if (x->requires_grad && !(s->blocked >> i & 1) && !(in[i] = fv__edge_target(x))) return false;
    }
    return true;
}

enum {
    FV__LARGE = 1 << 16, /* bytes of a value from which recomputing it pays on a CPU */
    FV__DEEPEST = 2      /* longest chain of recomputed values: every third one is stored */
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

/* True if the node of x, operand k of n, can recompute it for n's backward: not if it was written in place
   since. */
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

/* Decides whether n's value is recomputed: it must be large, and the chain of recomputed values before it
   short. A view does not lengthen the chain. */
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

/* True if an op with these inputs must be recorded. */
static inline bool fv__tracks(const fl_tensor *value, fv_list in) {
    bool any = false;
    if (!fl_grad_enabled() || !fl_dtype_is_float(value->dtype)) return false;
    for (int i = 0; i < in.n; i++) any |= in.v[i] && in.v[i]->requires_grad;
    return any;
}

/* Completes *s by name, backward function and args_size of its op, in *storage; NULL after an error. */
static const fv_record_opts *fv__of_op(const fv_record_opts *s, fv_record_opts *storage) {
    const fl_op_info *info = fl_op_get_info(s->op);
    if (!info) return fl_err_null("fv_record_opt: there is no op %d", s->op);
    *storage = *s;
    storage->name = info->name;
    storage->back = info->gradient;
    storage->bytes = s->args ? info->args_size : 0;
    return storage;
}

/* Frees the arguments of an op that is not recorded. */
static void fv__free_args(const fv_record_opts *s) {
    if (s && s->free_args) s->free_args((void *)(uintptr_t)s->args);
}

/* Creates the node of one result (several 0) or of several, with a reference; NULL after fl_fail. It takes
   ownership of the arguments, which are freed after an error. */
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

/* Records a + b, of the same shape and dtype; fv_add is not used, because it belongs to a higher layer. */
static fl_var *fv__added(fl_var *a, fl_var *b) {
    fl_tensor *sum = fl_binary_op(FL_OP_add, a->value, b->value);
    return fv_record_args("add", sum, fv__added_back, FV_IN(a, b), FV_NONE, NULL, 0);
}

/* ---- several results ---- */

/* Backward of a port: passes the gradient of a result to the node. */
static void fv__port_back(fl_node *port, fl_var *dy) {
    fl_node *n = fv__edges(port)[0];
    fl_var **to = &n->results[*(const int *)port->args], *old = *to;
    fl_var *g = old ? fv__added(old, dy) : dy;
    if (!g) return;
    *to = fv_keep(g);
    fv_drop(old);
    if (!n->grad) n->grad = fv_keep(g);
}

/* Makes y result k of n through a port, a node between the two that backward visits before n. */
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
    fl_quiet(1); /* a handler that does longjmp must not leak the node */
    bool ok = !s->op || s->back || (s = fv__of_op(s, &of_op));
    if (ok && (count < 1 || count > FV_MAX))
        ok = fl_fail("fv_record_several: %s has %d results, expected 1 to %d", s->name, count, FV_MAX);
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
        fl_fail("fv_record: %s has %d inputs and %d saved values, expected at most %d each", name, in.n,
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

/* Wraps the output's tensor t in a variable of node n again. */
static fl_var *fv__output_of(fl_node *n, fl_tensor *t) {
    fl_var *y = fv_const(t);
    if (!y || !fl_grad_enabled()) return y;
    fl_obj_keep(&n->obj);
    y->node = n;
    y->requires_grad = true;
    return y;
}

/* The same for result k of several. */
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
        fl_fail("fv_saved: saved value %d of %s is out of range: it saved %d", i, n->name, n->n_saved);
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

FL_API const char *fv_node_provenance(const fl_node *n) {
    if (!fl_given(n, "fv_node_provenance", "the node")) return NULL;
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

/* True if x has one reference and its storage is used by `handles` handles, including x's value, and nothing
   else. Storage outside of buffers belongs to a handle, which its views refer to. */
static bool fv__is_sole(const fl_var *x, int handles) {
    const fl_tensor *t = x->value;
    const int refs = __atomic_load_n(&t->obj.refs_, __ATOMIC_ACQUIRE);
    if (t->weak || __atomic_load_n(&x->obj.refs_, __ATOMIC_ACQUIRE) != 1) return false;
    if (!t->buffer) return !t->base_ && refs == handles;
    return refs == 1 && fl_buffer_refs(t->buffer) == handles; /* deferred calls run in the program's order */
}

/* True if g is a view of all of n's gradient, which is freed after n's backward, so that g may take over its
   storage. */
static bool fv__may_take_storage(const fl_node *n, const fl_tensor *g) {
    const fl_tensor *dy = n->grad->value;
    return fl_numel(g) == fl_numel(dy) && fv__is_sole(n->grad, g == dy ? 1 : 2);
}

/* True if g shares storage with another value that n's backward may access. */
static bool fv__is_shared(const fl_node *n, const fl_tensor *g) {
    fl_node **in = fv__edges(n);
    const fv__saved *saved = fv__saves(n);
    bool shared = (fv__same_storage(g, fv_value(n->grad)) && !fv__may_take_storage(n, g)) ||
                  fv__same_storage(g, n->out);
    for (int i = 0; i < n->n_in; i++) shared |= in[i] && fv__same_storage(g, fv_value(in[i]->grad));
    for (int i = 0; i < n->n_saved; i++) shared |= fv__same_storage(g, fv_value(saved[i].var));
    for (int i = 0; i < n->n_results; i++) shared |= fv__same_storage(g, fv_value(n->results[i]));
    return shared;
}

/* Converts g to a gradient of input i: a tensor with its shape and dtype. */
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

/* True if t is dense, in any order of axes. */
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

/* t += g in place; t is not shared. */
static bool fv__add_into(fl_tensor *t, fl_tensor *g) {
    return fl_call_into(FL_OP_add, t, t, g, NULL) != NULL;
}

/* sum + g, in place if sum is not shared. */
static fl_var *fv__sum_of(fl_var *sum, fl_var *g) {
    fl_tensor *t = sum->value;
    const bool same_kind = t->backend == g->value->backend && !g->value->weak && fv__same_kind(t, g->value);
    if (fl_grad_enabled() || !same_kind || !fv__is_sole(sum, 1) || !fv__is_dense(t))
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
        fl_fail("fv_add_grad: input %d of %s is out of range: it has %d", i, n->name, n->n_in);
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

/* The gradient of input i so far, in an unshared tensor: itself, a copy, or zeros. */
static fl_var *fv__unshared_sum(fl_node *n, int i) {
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
    fl_var *sum = fv__unshared_sum(n, i);
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

/* A backward pass. Nodes are first sorted topologically (Kahn's algorithm, without recursion), then
   visited. */
typedef struct fv__pass fv__pass;
struct fv__pass {
    const char *fn; /* for error texts */
    fl_node **node;
    int64_t n, cap;
    fv_list roots, given;
    fl_tensor *grad; /* .grad of fl_backward */
    /* For fl_grads: only nodes on paths to these are visited, and the gradients stay there. */
    fv_list targets;
    bool retain, create_graph;
    fv__outer *outer; /* gradients of an enclosing pass at nodes of both, saved during this one */
    int64_t n_outer, outer_cap;
    fv__pass *around;
};

static _Thread_local fv__pass *fv__running;

static void fv__mark_targets(const fv__pass *p, bool on) {
    for (int i = 0; p && i < p->targets.n; i++)
        if (p->targets.v[i]->requires_grad) fv__grad_target(p->targets.v[i])->target = on;
}

/* Claims a leaf for the passes of this thread: passes of two threads would mix their sums. */
static bool fv__claim(fv__pass *p, fl_node *sink) {
    void *other = NULL;
    if (__atomic_compare_exchange_n(&sink->pass, &other, p, false, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE))
        return true;
    for (const fv__pass *mine = fv__running; mine; mine = mine->around)
        if (mine == other) return true;
    return other == p || fl_fail("%s: another thread runs backward through the same leaf: train a net in one "
                                 "thread at a time, or give each thread a copy", p->fn);
}

static void fv__release(const fv__pass *p, fl_node *n) {
    if (!n->back && n->pass == p) __atomic_store_n(&n->pass, NULL, __ATOMIC_RELEASE);
}

static void fv__reset_search(fv__pass *p) {
    for (int64_t i = 0; i < p->n; i++) {
        p->node[i]->seen = false;
        p->node[i]->pending = 0;
        fv__release(p, p->node[i]);
    }
}

static bool fv__check_not_freed(const fl_node *n) {
    return !n->spent || fl_fail("fl_backward: the graph behind %s was freed by an earlier backward; "
                                "pass .retain_graph = true to it", n->name);
}

static bool fv__search_push(fv__pass *p, fl_node *to) {
    if (!to->back && !fv__claim(p, to)) return false;
    if (!to->seen) {
        if (!fv__check_not_freed(to)) return false;
        if (p->n == p->cap && !fl_heap_grow(&p->node, &p->cap, p->n + 64, sizeof *p->node)) return false;
        to->seen = true;
        p->node[p->n++] = to;
    }
    to->pending++;
    return true;
}

/* Collects all nodes reachable from the roots, and counts in `pending` the edges to each, plus one per
   root. */
static bool fv__search(fv__pass *p) {
    bool ok = true;
    for (int i = 0; ok && i < p->roots.n; i++)
        if (p->roots.v[i]->requires_grad) ok = fv__search_push(p, fv__grad_target(p->roots.v[i]));
    for (int64_t i = 0; ok && i < p->n; i++) {
        fl_node *n = p->node[i], **in = fv__edges(n);
        for (int k = 0; ok && k < n->n_in; k++)
            if (in[k]) ok = fv__search_push(p, in[k]);
    }
    if (!ok) fv__reset_search(p);
    return ok;
}

static void fv__sort_push(fv__pass *p, fl_node *to) {
    if (--to->pending == 0) p->node[p->n++] = to;
}

static bool fv__leads_to_target(const fl_node *n) {
    fl_node **in = fv__edges(n);
    bool wanted = false;
    for (int k = 0; k < n->n_in; k++) wanted |= in[k] && in[k]->wanted;
    return wanted;
}

/* Topological sort: a node comes after all nodes with edges to it. */
static void fv__sort(fv__pass *p) {
    p->n = 0;
    for (int i = 0; i < p->roots.n; i++)
        if (p->roots.v[i]->requires_grad) fv__sort_push(p, fv__grad_target(p->roots.v[i]));
    for (int64_t i = 0; i < p->n; i++) {
        fl_node *n = p->node[i], **in = fv__edges(n);
        n->seen = false;
        for (int k = 0; k < n->n_in; k++)
            if (in[k]) fv__sort_push(p, in[k]);
    }
    for (int64_t i = p->n; i-- > 0;) {
        fl_node *n = p->node[i];
        n->wanted = !p->targets.n || n->target || fv__leads_to_target(n);
    }
}

/* Saves the gradient that an enclosing pass has accumulated at n. */
static bool fv__save_outer_grad(fv__pass *p, fl_node *n) {
    if (!n->grad) return true;
    if (p->n_outer == p->outer_cap &&
        !fl_heap_grow(&p->outer, &p->outer_cap, p->n_outer + 1, sizeof *p->outer))
        return false;
    p->outer[p->n_outer++] = (fv__outer){n, n->grad};
    n->grad = NULL;
    return true;
}

/* The same for all nodes to which p adds. Only for fl_grads: fl_backward adds to what a leaf has. */
static bool fv__save_outer_grads(fv__pass *p) {
    bool ok = true;
    for (int i = 0; ok && i < p->targets.n; i++)
        if (p->targets.v[i]->requires_grad) ok = fv__save_outer_grad(p, fv__grad_target(p->targets.v[i]));
    for (int64_t i = 0; ok && p->targets.n && i < p->n; i++)
        if (p->node[i]->wanted) ok = fv__save_outer_grad(p, p->node[i]);
    return ok;
}

/* g in the layout of the leaf if that is dense, otherwise row-major, so that optimizer steps traverse both
   linearly. */
static fl_tensor *fv__stored_as(fl_tensor *g, fl_tensor *leaf) {
    if (fl_is_contiguous(leaf)) return fl_contiguous(g);
    fl_tensor *y = fl_empty_like(leaf);
    bool same_kind = y != NULL;
    for (int i = 0; same_kind && i < g->ndim; i++)
        same_kind = g->shape[i] == 1 || g->stride[i] == y->stride[i];
    if (!y) return NULL;
    return same_kind ? g : fl_assign(y, g);
}

/* Adds the gradient that arrived at a sink, if any, to its leaf's, which shares no storage. */
static void fv__accumulate(fl_node *sink) {
    fl_var *x = sink->leaf, *g = sink->grad;
    if (!x || !x->requires_grad) return;
    if (g && !fl_grad_enabled()) {
        fl_tensor *stored = fv__stored_as(g->value, x->value);
        if (stored != g->value && !(g = fv_const(stored))) return;
    }
    if (g && x->grad && !(g = fv__sum_of(x->grad, g))) return;
    if (g && g == sink->grad && !x->grad && fv__same_kind(g->value, x->value)) { /* move the reference */
        x->grad = g;
        sink->grad = NULL;
    } else if (g && !fv_set_grad(x, g)) {
        return;
    }
    if (g && x->hooks_) fv__call_hooks(x);
    if (fv__watchers && !fl_error()) fv__notify_leaf_ready(x);
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
    snprintf(buf, size, "%s", fv_node_provenance(of));
}

/* Visits a node. An additional reference to a target's gradient prevents in-place additions to it. */
static void fv__visit(const fv__pass *p, fl_node *n, bool on) {
    const bool noted = n->back && n->made;
    fl_scope s =
        noted ? fl_scope_at(&(fl_error_context){NULL, n, fv__describe_node, n->name}) : fl_scope_begin();
    if (fl_error()) return;
    if (n->hook_copy) fv__call_hooks_of(n);
    fl_var *dy = n->grad, *held = n->target ? fv_keep(dy) : NULL;
    if (n->back && dy && on && fv__check_not_freed(n)) n->back(n, dy);
    if (!n->back && !p->targets.n) fv__accumulate(n);
    fv_drop(held);
    fl_scope_end(&s);
}

/* Visits the nodes, until the first error. The edges are released after the pass, leaves first, so that no
   freed node is accessed; a nested pass releases none. */
static void fv__run(fv__pass *p) {
    for (int64_t i = 0; i < p->n; i++) {
        fl_node *n = p->node[i];
        const bool on = n->wanted && (!n->target || fv__leads_to_target(n));
        if (n->wanted && (n->grad || (!n->back && fv__watchers)) && !fl_error()) fv__visit(p, n, on);
        if (n->wanted && !n->target) fv__drop_grad(n);
        if (!p->retain && n->back && on && !fl_error()) {
            n->spent = true;
            fv__node_clear(n);
        } else if (n->recompute) {
            fl_drop(n->out);
            n->out = NULL;
        }
        n->wanted = true; /* for an enclosing pass */
        fv__release(p, n);
    }
    for (int64_t i = p->n; !p->around && i-- > 0;)
        if (p->node[i]->spent) fv__drop_edges(p->node[i]);
}

/* The initial gradient of root k; NULL after an error. */
static fl_var *fv__seed(const fv__pass *p, int k) {
    fv__text a, b;
    const fl_var *root = p->roots.v[k];
    fl_var *given = k < p->given.n ? p->given.v[k] : fv_const(p->grad);
    fl_tensor *v = root->value;
    const bool grads = !strcmp(p->fn, "fl_grads"), leaf = !root->node && !p->targets.n;
    if (!given && fl_numel(v) != 1)
        fl_fail("%s: the root is %s; reduce it to one element%s", p->fn, fv__describe(v, &a),
                grads ? " or pass .given" : p->targets.n ? "" : " or pass .grad");
    else if (given && !fl_same_shape(given->value, v))
        fl_fail("%s: %s is %s, expected the shape of the root, %s", p->fn, grads ? ".given" : ".grad",
                fv__describe(given->value, &a), fv__describe(v, &b));
    else if (!given) return fv_const(fl_full_like(v, 1));
    else /* a leaf's gradient must have its own storage */
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

/* Creates the sinks of roots and targets that are leaves. */
static bool fv__create_targets(fv_list of) {
    for (int i = 0; i < of.n; i++)
        if (of.v[i]->requires_grad && !fv__grad_target(of.v[i])) return false;
    return true;
}

/* Takes the targets' gradients, with a reference each; restores those of an enclosing pass. */
static void fv__take(fv__pass *p, fl_var **grads) {
    for (int i = 0; i < p->targets.n; i++)
        grads[i] = p->targets.v[i]->requires_grad ? fv_keep(fv__grad_target(p->targets.v[i])->grad) : NULL;
    for (int i = 0; i < p->targets.n; i++)
        if (p->targets.v[i]->requires_grad) fv__drop_grad(fv__grad_target(p->targets.v[i]));
    for (int64_t i = 0; i < p->n_outer; i++) p->outer[i].node->grad = p->outer[i].grad;
}

/* Runs a pass in its own scope, without calling the error handler. grads: the targets', with a reference
   each. False after fl_fail. */
static bool fv__pass_run(fv__pass *p, fl_var **grads) {
    uint64_t flags = fl_flags();
    fl_scope s = fl_scope_begin();
    fl_quiet(1);
    fl_set_flags(flags & ~FL_AUTOCAST_FLAGS);
    fl_no_grad(!p->create_graph);
    if (!fl_error() && fv__create_targets(p->roots) && fv__create_targets(p->targets) && fv__search(p)) {
        fv__mark_targets(fv__running, false);
        fv__mark_targets(p, true);
        p->around = fv__running;
        fv__running = p;
        fv__sort(p);
        if (fv__save_outer_grads(p)) fv__start(p);
        fv__run(p);
        fv__take(p, grads);
        fv__running = p->around;
        fv__mark_targets(p, false);
        fv__mark_targets(fv__running, true);
    }
    fl_heap_free(p->outer);
    fl_heap_free(p->node);
    fl_scope_end(&s);
    fl_set_flags(flags); /* fl_scope_begin may have failed */
    if (!p->targets.n && fv__watchers) fv__notify_pass_end();
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
    fv__pass p = {.fn = "fl_backward", .roots = {1, &root}, .grad = o.grad,
                  .retain = o.retain_graph || o.create_graph, .create_graph = o.create_graph};
    if (fv__pass_run(&p, NULL)) return true;
    fl_raise();
    return false;
}

/* Runs a pass of fl_grads, whose lists are valid; found: [p->targets.n], owned by the innermost scope. */
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
    fv__pass p = {.fn = "fl_grad", .roots = {1, &root}, .targets = {1, &x}, .retain = true,
                  .create_graph = create_graph};
    return fv__grads(&p, &g) ? g : fl_raise();
}

FL_API bool fl_grads_opt(fv_list outputs, fv_list inputs, fl_var **grads, fl_grads_opts o) {
    if (fl_error()) return false;
    fl_quiet(1);
    bool ok = fv_check_list("fl_grads", "output", outputs) && fv_check_list("fl_grads", "input", inputs);
    if (ok && !grads) ok = fl_fail("fl_grads: the array of gradients is NULL");
    if (ok && o.given.n && o.given.n != outputs.n)
        ok = fl_fail("fl_grads: .given has %d gradients, expected one per output, %d", o.given.n, outputs.n);
    fl_var **found = ok ? fl_heap_alloc((size_t)inputs.n * sizeof *found) : NULL;
    fv__pass p = {.fn = "fl_grads", .roots = outputs, .given = o.given, .targets = inputs,
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
