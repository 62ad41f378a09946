/* fl_nn.h - modules, layers, losses, initialisation, and saving them

   A module is a function with parameters: a small table (forward, describe), named parameters and
   buffers, and children. Layers are modules, containers are modules, and so is a function of yours.

   >>example
    #define FL_IMPLEMENTATION
    #include "fl_nn.h"
    int main(void) {
        fl_nn_module *net = fl_nn_sequential(
            fl_nn_view(FL_SHAPE(-1, 1, 28, 28)),
            fl_nn_conv2d(1, 8, 5, .pad = FL_SAME), fl_nn_relu(), fl_nn_pool2d(2),
            fl_nn_view(FL_SHAPE(-1, 8 * 14 * 14)),
            fl_nn_linear(8 * 14 * 14, 10));
        fl_nn_print(net);
        fl_scope s = fl_scope_begin();
        fl_var *x = fv_const(fl_uniform(FL_SHAPE(4, 784), 0, 1, FL_F32, NULL));
        fl_tensor *target = fl_randint(FL_SHAPE(4), 0, 10, NULL);
        fl_var *loss = fl_nn_cross_entropy(fl_nn_forward(net, x), target);
        fl_backward(loss);
        fl_print(fv_value(loss));                          // about ln 10
        fl_print(fv_grad(fl_nn_get_param(net, "5.bias"))); // softmax - one hot, averaged
        fl_scope_end(&s);
        fl_nn_free(net);
        return 0;
    }
   <<example

   Contents: search for the marker.
     >>modules  >>trees  >>containers  >>layers  >>init  >>losses  >>saving
     >>rooms  >>implementation

   Concepts
     Owning   A module is a plain object: its maker owns it, fl_nn_add hands it to a parent,
              fl_nn_free frees a whole tree. What it stores (parameters, buffers) is kept. A maker
              that fails frees what it was handed and returns NULL.
     Calls    fl_nn_forward runs a module in a scope of its own and lets only the results out.
     Names    A parameter's path is the dotted names of the modules above it and its own:
              "0.weight", "layer1.0.bn1.running_mean". They are PyTorch's, so its safetensors load
              as they are. Unnamed children are numbered.
     Modes    A module is born in training mode; fl_nn_train sets a tree. It decides about dropout
              and batch statistics, nothing else: recording is fl_no_grad's matter.
     Options  See fl_tensor.h: designated initialisers, 0 is the default, FL_ZERO and FL_I0 are
              zero. Layers with parameters take .dtype (f32), and .rng (NULL: the process's
              generator) where their initial values are random. */
#include "fl_composed.h"
#include "fl_data.h"
#ifndef FL_NN_H
#define FL_NN_H

#ifdef __cplusplus
extern "C" {
#endif

/* >>modules ------------------------------------------------------------------------------------ */

#define FL_NN_NAME 64 /* bytes of one name, its end included; a path has at most FL_NN_PATH */
#define FL_NN_PATH 512
#define FL_VARS_MAX 8

/* What a module takes and gives. */
typedef struct fl_vars {
    int n;
    fl_var *v[FL_VARS_MAX];
} fl_vars;
#define FL_VARS(...) \
    ((fl_vars){(int)(sizeof((fl_var *[]){__VA_ARGS__}) / sizeof(fl_var *)), {__VA_ARGS__}})

typedef struct fl_nn_module fl_nn_module;
typedef fl_vars (*fl_nn_forward_fn)(fl_nn_module *m, fl_vars in);

/* The table of a kind of module: all that a layer of your own must bring is `forward`. */
typedef struct fl_nn_type {
    const char *name;         /* as printed: "Linear" */
    const char *maker;        /* as messages call it: "fl_nn_linear"; NULL: name */
    int inputs;               /* that forward takes; 0: any number */
    fl_nn_forward_fn forward; /* runs in a scope of its own; n = 0 after fl_fail */
    /* The others may be NULL. release lets go of what data holds; describe writes the text in the
       parentheses; state gives plain bytes that are saved beside the buffers, as "_extra_state". */
    void (*release)(void *data);
    void (*describe)(const fl_nn_module *m, char *buf, size_t size);
    void *(*state)(fl_nn_module *m, size_t *bytes);
} fl_nn_type;

typedef struct fl_nn_param { char name[FL_NN_NAME]; fl_var *var; } fl_nn_param;
typedef struct fl_nn_buffer { char name[FL_NN_NAME]; fl_tensor *tensor; } fl_nn_buffer;
struct fl_nn_module {
    const fl_nn_type *type;
    const char *kind;      /* type->name, or the name given to fl_nn_function; a literal */
    char name[FL_NN_NAME]; /* under the parent; "" at the root */
    bool train;
    void *data;            /* the type's own, freed with the module */
    fl_nn_module *parent, **child;
    fl_nn_param *param;    /* trained by an optimizer */
    fl_nn_buffer *buffer;  /* saved, not trained */
    int64_t n_child, n_param, n_buffer;
    /* private */
    int64_t child_cap_, param_cap_, buffer_cap_, list_n_, list_cap_;
    fl_var **list_;
};

/* A module of that type with a copy of `bytes` plain bytes of data. If it fails, data is released.
   */
FL_API fl_nn_module *fl_nn_new(const fl_nn_type *type, const void *data, size_t bytes);
/* A module made of a function, which finds `user` by fl_nn_user(m). kind: for printing (a literal).
   release (NULL: nothing) gets user when the module goes. Children and parameters may be added. */
FL_API fl_nn_module *fl_nn_function(const char *kind, fl_nn_forward_fn forward, void *user,
                                    void (*release)(void *user));
FL_API void *fl_nn_user(const fl_nn_module *m);
/* Adds a child and returns it; the parent owns it. name NULL: its number. If it fails, the child is
   freed. */
FL_API fl_nn_module *fl_nn_add(fl_nn_module *parent, const char *name, fl_nn_module *child);
/* Keeps a parameter or buffer under that name and returns it. */
FL_API fl_var *fl_nn_add_param(fl_nn_module *m, const char *name, fl_var *p);
FL_API fl_tensor *fl_nn_add_buffer(fl_nn_module *m, const char *name, fl_tensor *t);
/* Frees the tree (and takes it out of its parent). NULL is fine. */
FL_API void fl_nn_free(fl_nn_module *m);

/* Runs m on several inputs, or on one; in a scope of its own, only the results leave it. n = 0, or
   NULL, after an error. */
FL_API fl_vars fl_nn_forward_vars(fl_nn_module *m, fl_vars in);
FL_API fl_var *fl_nn_forward(fl_nn_module *m, fl_var *x);
/* For forward functions: fl_fail with "maker 'path': " in front; returns no results. */
FL_API fl_vars fl_nn_fail(const fl_nn_module *m, const char *format, ...) FL_PRINTF(2, 3);

/* >>trees -------------------------------------------------------------------------------------- */

/* The parameters of the tree, each once, for optimizers and clipping. The array belongs to m: valid
   until the next call. */
FL_API fv_list fl_nn_parameters(fl_nn_module *m);
/* Numbers in these parameters. */
FL_API int64_t fl_nn_count(fl_nn_module *m);
FL_API void fl_nn_train(fl_nn_module *m, bool on);
FL_API void fl_nn_zero_grad(fl_nn_module *m);
/* By path from m, NULL (no error) if there is none. */
FL_API fl_nn_module *fl_nn_find(fl_nn_module *m, const char *path);
FL_API fl_var *fl_nn_get_param(fl_nn_module *m, const char *path);
FL_API fl_tensor *fl_nn_get_buffer(fl_nn_module *m, const char *path);
/* Visits each module's parameters, then its buffers, then its children, with paths from m; one of
   param and buffer is NULL. Ends with false when fn returns false. */
typedef bool (*fl_nn_visit_fn)(const char *path, fl_var *param, fl_tensor *buffer, void *user);
FL_API bool fl_nn_named(fl_nn_module *m, fl_nn_visit_fn fn, void *user);
/* The tree as PyTorch prints it, as snprintf does; fl_nn_print adds a newline on stdout. */
FL_API int64_t fl_nn_format(const fl_nn_module *m, char *buf, size_t size);
FL_API bool fl_nn_print(const fl_nn_module *m);

/* >>containers --------------------------------------------------------------------------------- */

/* Each child's results are the next one's inputs, but max pooling right behind a ReLU runs before it,
   which is the same with fewer numbers. Owns the children; if it fails, they are freed. fl_nn_add
   adds more. */
#define fl_nn_sequential(...) \
    fl_nn_sequential_of((int)(sizeof((fl_nn_module *[]){__VA_ARGS__}) / sizeof(fl_nn_module *)), \
                        (fl_nn_module *[]){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_sequential_of(int n, fl_nn_module *const *children);

/* >>layers ------------------------------------------------------------------------------------- */

/* Same elements, other shape. A first dim of -1 is that of the input (the batch); one other may be
   -1. */
FL_API fl_nn_module *fl_nn_view(fl_shape shape);

typedef struct fl_nn_linear_opts {
    char _;
    bool no_bias;
    fl_op act; /* y = act(that), one of fl_linear_act's: FL_OP_relu, FL_OP_gelu, ...; 0 -> none */
    fl_dtype dtype;
    fl_rng *rng;
} fl_nn_linear_opts;
/* y = x weight^T + bias; x [..., in] -> [..., out], weight [out, in], bias [out], both U(-1 /
   sqrt(in), 1 / sqrt(in)). */
#define fl_nn_linear(...) FL_NN__LINEAR(__VA_ARGS__, ._ = 0)
#define FL_NN__LINEAR(in, out, ...) fl_nn_linear_opt(in, out, (fl_nn_linear_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_linear_opt(int64_t in, int64_t out, fl_nn_linear_opts o);

typedef struct fl_nn_conv2d_opts {
    char _;
    int64_t kernel_w;             /* 0 -> kernel */
    int64_t stride, stride_w;     /* 0 -> 1; stride_w 0 -> stride */
    int64_t pad, pad_w;           /* zeros on both sides, or FL_SAME; pad_w 0 -> pad, FL_I0 -> 0 */
    int64_t dilation, dilation_w; /* 0 -> 1; 0 -> dilation */
    int64_t groups;               /* 0 -> 1 */
    bool no_bias;
    fl_dtype dtype;
    fl_rng *rng;
} fl_nn_conv2d_opts;
/* x [n, in, h, w] -> [n, out, oh, ow] as fl_conv2d; weight [out, in / groups, kernel, kernel_w] and
   bias [out] are uniform within 1 / sqrt(in / groups * kernel * kernel_w) of 0. */
#define fl_nn_conv2d(...) FL_NN__CONV2D(__VA_ARGS__, ._ = 0)
#define FL_NN__CONV2D(in, out, kernel, ...) \
    fl_nn_conv2d_opt(in, out, kernel, (fl_nn_conv2d_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_conv2d_opt(int64_t in, int64_t out, int64_t kernel, fl_nn_conv2d_opts o);
/* Lays the tree out for images stored [n, h, w, c], once, before an optimizer is made: weights of
   2-d convolutions are stored so from here on, and such a layer converts an input that is stored
   otherwise. As what follows a channels-last image stays so, that is the first one's. Shapes,
   values and files are what they were. False after an error. */
FL_API bool fl_nn_channels_last(fl_nn_module *m);

typedef struct fl_nn_pool2d_opts {
    char _;
    int64_t kernel_w;         /* 0 -> kernel */
    int64_t stride, stride_w; /* 0 -> kernel (kernel_w); stride_w 0 -> stride */
    int64_t pad, pad_w;       /* as above */
    bool average;             /* mean instead of maximum */
    bool ignore_pad;          /* average over the elements inside the image only */
} fl_nn_pool2d_opts;
/* x [n, c, h, w] -> [n, c, oh, ow], the maximum (or mean) of each window. */
#define fl_nn_pool2d(...) FL_NN__POOL2D(__VA_ARGS__, ._ = 0)
#define FL_NN__POOL2D(kernel, ...) fl_nn_pool2d_opt(kernel, (fl_nn_pool2d_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_pool2d_opt(int64_t kernel, fl_nn_pool2d_opts o);

/* A function of one variable as a layer, e.g. fl_nn_activation("SiLU", fv_silu); the name is for
   printing (a literal). */
FL_API fl_nn_module *fl_nn_activation(const char *name, fl_var *(*fn)(fl_var *x));
FL_API fl_nn_module *fl_nn_relu(void);
FL_API fl_nn_module *fl_nn_gelu(void);
FL_API fl_nn_module *fl_nn_tanh(void);
FL_API fl_nn_module *fl_nn_sigmoid(void);
/* fl_log_softmax along axis. */
FL_API fl_nn_module *fl_nn_log_softmax(int axis);

typedef struct fl_nn_dropout_opts {
    char _;
    fl_rng *rng; /* NULL: the process's; must outlive the layer */
} fl_nn_dropout_opts;
/* In training x / (1 - p) with probability 1 - p, else 0; otherwise x. */
#define fl_nn_dropout(...) FL_NN__DROPOUT(__VA_ARGS__, ._ = 0)
#define FL_NN__DROPOUT(p, ...) fl_nn_dropout_opt(p, (fl_nn_dropout_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_dropout_opt(double p, fl_nn_dropout_opts o);

typedef struct fl_nn_batch_norm_opts {
    char _;
    double momentum; /* 0 -> 0.1; running = (1 - momentum) running + momentum batch */
    bool cumulative; /* running is the plain average over all batches instead */
    double eps;      /* 0 -> 1e-5 */
    bool no_affine;  /* no weight and bias */
    bool no_track;   /* no running statistics: those of the batch always */
    bool relu;       /* y = max(0, that), after the second input, if there is one, was added */
    fl_dtype dtype;
} fl_nn_batch_norm_opts;
/* y = (x - mean) / sqrt(var + eps) * weight + bias per channel of x [n, c, h, w]. In training mean
   and var (biased) are the batch's, and running_mean, running_var (unbiased) and
   num_batches_tracked (i64) are updated; else the running ones. A second input of x's shape is
   added to y: the end of a residual block in one pass. */
#define fl_nn_batch_norm2d(...) FL_NN__BATCH_NORM2D(__VA_ARGS__, ._ = 0)
#define FL_NN__BATCH_NORM2D(channels, ...) \
    fl_nn_batch_norm2d_opt(channels, (fl_nn_batch_norm_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_batch_norm2d_opt(int64_t channels, fl_nn_batch_norm_opts o);

typedef struct fl_nn_layer_norm_opts {
    char _;
    double eps; /* 0 -> 1e-5 */
    bool no_affine, no_bias;
    fl_dtype dtype;
} fl_nn_layer_norm_opts;
/* y = (x - mean) / sqrt(var + eps) * weight + bias; mean and var (biased) over the last dims of x,
   which are `shape`, as are weight and bias. */
#define fl_nn_layer_norm(...) FL_NN__LAYER_NORM(__VA_ARGS__, ._ = 0)
#define FL_NN__LAYER_NORM(shape, ...) \
    fl_nn_layer_norm_opt(shape, (fl_nn_layer_norm_opts){__VA_ARGS__})
FL_API fl_nn_module *fl_nn_layer_norm_opt(fl_shape shape, fl_nn_layer_norm_opts o);

/* >>init --------------------------------------------------------------------------------------- */

/* Overwrite the value of p. rng NULL: the process's. False after an error. */
FL_API bool fl_nn_constant_(fl_var *p, double value);
FL_API bool fl_nn_uniform_(fl_var *p, double low, double high, fl_rng *rng);
FL_API bool fl_nn_normal_(fl_var *p, double mean, double std, fl_rng *rng);
/* Of a weight [out, in, ...]: in (out) times the product of the dims after them. False after an
   error. */
FL_API bool fl_nn_fan(const fl_var *p, int64_t *fan_in, int64_t *fan_out);
/* gain / sqrt(fan_in) as deviation, gain = sqrt(2 / (1 + a^2)), a the negative slope of a leaky
   ReLU (0: ReLU). */
FL_API bool fl_nn_kaiming_uniform_(fl_var *p, double a, fl_rng *rng);
FL_API bool fl_nn_kaiming_normal_(fl_var *p, double a, fl_rng *rng);
/* gain sqrt(2 / (fan_in + fan_out)) as deviation. */
FL_API bool fl_nn_glorot_uniform_(fl_var *p, double gain, fl_rng *rng);
FL_API bool fl_nn_glorot_normal_(fl_var *p, double gain, fl_rng *rng);

/* >>losses ------------------------------------------------------------------------------------- */

typedef struct fl_nn_nll_opts {
    char _;
    fl_reduction reduction; /* FL_MEAN: over the targets that count */
    int64_t ignore_index;      /* targets of this value do not count; 0 -> -100, FL_I0 -> 0 */
} fl_nn_nll_opts;
/* -logp[i, target[i]]: log probabilities [n, c, ...], target i64 [n, ...] -> a number ([n, ...]
   with FL_NONE). */
#define fl_nn_nll(...) FL_NN__NLL(__VA_ARGS__, ._ = 0)
#define FL_NN__NLL(logp, target, ...) fl_nn_nll_opt(logp, target, (fl_nn_nll_opts){__VA_ARGS__})
FL_API fl_var *fl_nn_nll_opt(fl_var *logp, fl_tensor *target, fl_nn_nll_opts o);

typedef struct fl_nn_cross_entropy_opts {
    char _;
    fl_reduction reduction;
    int64_t ignore_index;
    double label_smoothing; /* this share of the target's probability is spread over all classes */
} fl_nn_cross_entropy_opts;
/* The same on the log softmax of logits along axis 1. */
#define fl_nn_cross_entropy(...) FL_NN__CROSS_ENTROPY(__VA_ARGS__, ._ = 0)
#define FL_NN__CROSS_ENTROPY(logits, target, ...) \
    fl_nn_cross_entropy_opt(logits, target, (fl_nn_cross_entropy_opts){__VA_ARGS__})
FL_API fl_var *fl_nn_cross_entropy_opt(fl_var *logits, fl_tensor *target,
                                       fl_nn_cross_entropy_opts o);

typedef struct fl_nn_mse_opts {
    char _;
    fl_reduction reduction;
} fl_nn_mse_opts;
/* (x - y)^2 of two variables of one shape. */
#define fl_nn_mse(...) FL_NN__MSE(__VA_ARGS__, ._ = 0)
#define FL_NN__MSE(x, y, ...) fl_nn_mse_opt(x, y, (fl_nn_mse_opts){__VA_ARGS__})
FL_API fl_var *fl_nn_mse_opt(fl_var *x, fl_var *y, fl_nn_mse_opts o);

/* >>saving ------------------------------------------------------------------------------------- */

/* Writes all parameters and buffers by path to a safetensors file; the file is replaced in one
   piece or not at all. These functions return false after an error and never stop. */
FL_API bool fl_nn_save(fl_nn_module *m, const char *path);
typedef struct fl_nn_load_opts {
    char _;
    bool partial;       /* take what is there: neither missing nor unexpected names are errors */
    const char *prefix; /* of the names in the file that are m's, e.g. "model."; NULL: "" */
} fl_nn_load_opts;
/* Overwrites parameters and buffers from a file. All names, shapes and dtypes are checked before
   any is touched. */
#define fl_nn_load(...) FL_NN__LOAD(__VA_ARGS__, ._ = 0)
#define FL_NN__LOAD(m, path, ...) fl_nn_load_opt(m, path, (fl_nn_load_opts){__VA_ARGS__})
FL_API bool fl_nn_load_opt(fl_nn_module *m, const char *path, fl_nn_load_opts o);

/* What a file of state holds, or is to fill: tensors by name. For checkpoints of your own: collect
   from several modules and optimizers, then save, or read and commit. Starts zeroed. */
typedef struct fl_nn_item {
    char *name;
    fl_tensor *tensor;  /* the live one; with `host` a snapshot of it */
    void *host;         /* plain numbers, overwritten by commit */
    fl_tensor *loaded_;
} fl_nn_item;
typedef struct fl_nn_state {
    fl_nn_item *item;
    int64_t n, cap_;
} fl_nn_state;
/* Adds a tensor, numbers in host memory, or all parameters and buffers of a module. name is prefix
   + name. */
FL_API bool fl_nn_state_add(fl_nn_state *s, const char *prefix, const char *name, fl_tensor *t);
FL_API bool fl_nn_state_add_host(fl_nn_state *s, const char *prefix, const char *name, void *host,
                                 fl_shape shape, fl_dtype dtype);
FL_API bool fl_nn_state_add_module(fl_nn_state *s, const char *prefix, fl_nn_module *m);
FL_API bool fl_nn_state_save(const fl_nn_state *s, const char *path, const fl_data_pair *meta,
                             int n_meta);
/* Reads every item of s from f, touching nothing. Names of f that start with prefix (NULL: "") and
   are not in s are unexpected. what: for messages. */
FL_API bool fl_nn_state_read(fl_nn_state *s, fl_data_file *f, const char *what, const char *prefix,
                             bool partial);
/* Overwrites the live tensors with what was read. */
FL_API bool fl_nn_state_commit(fl_nn_state *s);
FL_API void fl_nn_state_free(fl_nn_state *s);

/* >>rooms -------------------------------------------------------------------------------------- */

/* Between this header and its second room, fl_nn_layers.h; not for users. */
#define FL__NN_SHAPE 192 /* bytes of a shape's text */
/* The shape of x as text, for messages. */
FL_PRIVATE const char *fl__nn_shape(const fl_var *x, char *buf);
/* False for a NULL operand, an error unless one is pending. */
FL_PRIVATE bool fl__nn_given(const void *p, const char *who, const char *what);
/* The end of a maker, which ran quietly: m as it is, or nothing. */
FL_PRIVATE fl_nn_module *fl__nn_made(fl_nn_module *m, bool ok);
/* Parameter i, NULL if the layer has none such (no bias). */
FL_PRIVATE fl_var *fl__nn_param(const fl_nn_module *m, int64_t i);
FL_PRIVATE bool fl__nn_dtype_ok(const char *who, fl_dtype dtype);
/* Ends the maker of m with a weight of that shape and a bias of its first dim, both uniform within
   1 / sqrt(fan in) of 0: PyTorch's kaiming_uniform(a = sqrt(5)) comes to the same bound. */
FL_PRIVATE fl_nn_module *fl__nn_weighted(fl_nn_module *m, fl_shape w, bool no_bias, fl_dtype dtype,
                                         fl_rng *rng);
/* Weight one and bias zero of that shape. */
FL_PRIVATE bool fl__nn_add_affine(fl_nn_module *m, fl_shape shape, bool no_bias, fl_dtype dtype);
/* The last dims of x are those of shape. */
FL_PRIVATE bool fl__nn_trailing(const fl_tensor *x, const fl_shape *shape);
FL_PRIVATE void fl__nn_describe_shape(const fl_shape *s, char *buf, size_t size);

#ifdef __cplusplus
}
#endif
#endif /* FL_NN_H: stop here if you only want the API */

/* >>implementation ----------------------------------------------------------------------------- */

#if defined(FL_IMPL_ONLY_NN) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_NN_IMPL
#define FL_NN_IMPL
#include "fl/ops/index.h"
#include "fl/ops/linear.h"
#include "fl/ops/reduce.h"
#include "fl/ops/softmax.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

FL_PRIVATE const char *fl__nn_shape(const fl_var *x, char *buf) {
    return fl_shape_text(fl_shape_of(fv_value(x)), buf, FL__NN_SHAPE);
}

/* modules: making and freeing */

FL_API fl_nn_module *fl_nn_new(const fl_nn_type *type, const void *data, size_t bytes) {
    if (!type || !type->forward) {
        fl_fail("fl_nn_new: the type is NULL, or has no forward");
        return fl_raise();
    }
    fl_nn_module *m = fl__alloc(sizeof *m);
    void *copy = m && bytes ? fl__alloc(bytes) : NULL;
    if (!m || (bytes && !copy)) {
        fl__free(m);
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

static void fl__nn_detach(fl_nn_module *m) {
    fl_nn_module *p = m->parent;
    int64_t i = 0;
    while (p->child[i] != m) i++;
    memmove(p->child + i, p->child + i + 1, (size_t)(p->n_child - i - 1) * sizeof *p->child);
    p->n_child--;
    m->parent = NULL;
}

FL_API void fl_nn_free(fl_nn_module *m) {
    if (!m) return;
    if (m->parent) fl__nn_detach(m);
    while (m->n_child) fl_nn_free(m->child[m->n_child - 1]);
    for (int64_t i = 0; i < m->n_param; i++) fv_drop(m->param[i].var);
    for (int64_t i = 0; i < m->n_buffer; i++) fl_drop(m->buffer[i].tensor);
    if (m->type->release) m->type->release(m->data);
    fl__free(m->child);
    fl__free(m->param);
    fl__free(m->buffer);
    fl__free(m->list_);
    fl__free(m->data);
    fl__free(m);
}

FL_PRIVATE fl_nn_module *fl__nn_made(fl_nn_module *m, bool ok) {
    fl_quiet(-1);
    if (ok) return m;
    fl_nn_free(m);
    return fl_raise();
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
        fl_fail("fl_nn_function: no forward function");
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

/* Appends the path of m from its root; returns the length it has. */
static int fl__nn_path(const fl_nn_module *m, char *buf, int size) {
    int n = m->parent ? fl__nn_path(m->parent, buf, size) : 0;
    int left = size > n ? size - n : 0;
    return n + snprintf(left ? buf + n : NULL, (size_t)left, "%s%s", n ? "." : "", m->name);
}

FL_API fl_vars fl_nn_fail(const fl_nn_module *m, const char *format, ...) {
    char path[FL_NN_PATH] = "", text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fl__nn_path(m, path, sizeof path);
    const char *maker = m->type->maker ? m->type->maker : m->kind;
    const bool named = path[0] != '\0';
    fl_fail("%s%s%s%s: %s", maker, named ? " '" : "", path, named ? "'" : "", text);
    return (fl_vars){0};
}

static int64_t fl__nn_child_at(const fl_nn_module *m, const char *name, size_t len) {
    for (int64_t i = 0; i < m->n_child; i++)
        if (strlen(m->child[i]->name) == len && !memcmp(m->child[i]->name, name, len)) return i;
    return -1;
}

static int64_t fl__nn_param_at(const fl_nn_module *m, const char *name) {
    for (int64_t i = 0; i < m->n_param; i++)
        if (!strcmp(m->param[i].name, name)) return i;
    return -1;
}

static int64_t fl__nn_buffer_at(const fl_nn_module *m, const char *name) {
    for (int64_t i = 0; i < m->n_buffer; i++)
        if (!strcmp(m->buffer[i].name, name)) return i;
    return -1;
}

/* A name can be a part of a path, and nothing else in m has it. */
static bool fl__nn_name_free(const fl_nn_module *m, const char *who, const char *name) {
    if (!name || !*name || strlen(name) >= FL_NN_NAME || strchr(name, '.'))
        return fl_fail("%s: '%s' is no name: 1 to %d characters without dots", who,
                       name ? name : "", FL_NN_NAME - 1);
    if (fl__nn_child_at(m, name, strlen(name)) >= 0 || fl__nn_param_at(m, name) >= 0 ||
        fl__nn_buffer_at(m, name) >= 0)
        return fl_fail("%s: '%s' is there already", who, name);
    return true;
}

FL_PRIVATE bool fl__nn_given(const void *p, const char *who, const char *what) {
    if (!p && !fl_error()) fl_fail("%s: %s is NULL", who, what);
    return p != NULL;
}

static bool fl__nn_may_add(fl_nn_module *parent, const char *name, fl_nn_module *child) {
    if (!fl__nn_given(parent, "fl_nn_add", "the parent") ||
        !fl__nn_given(child, "fl_nn_add", "the child"))
        return false;
    for (const fl_nn_module *p = parent; p; p = p->parent)
        if (p == child) return fl_fail("fl_nn_add: '%s' would be inside itself", name ? name : "");
    if (child->parent)
        return fl_fail("fl_nn_add: '%s' belongs to another module", name ? name : child->name);
    return true;
}

FL_API fl_nn_module *fl_nn_add(fl_nn_module *parent, const char *name, fl_nn_module *child) {
    const bool mine = fl__nn_may_add(parent, name, child);
    char number[24];
    if (mine && !name) {
        snprintf(number, sizeof number, "%" PRId64, parent->n_child);
        name = number;
    }
    if (mine && fl__nn_name_free(parent, "fl_nn_add", name) &&
        fl__grow(&parent->child, &parent->child_cap_, parent->n_child + 1, sizeof *parent->child)) {
        snprintf(child->name, FL_NN_NAME, "%s", name);
        child->parent = parent;
        return parent->child[parent->n_child++] = child;
    }
    if (mine || (child && !parent && !child->parent)) fl_nn_free(child);
    return fl_raise();
}

FL_API fl_var *fl_nn_add_param(fl_nn_module *m, const char *name, fl_var *p) {
    if (!fl__nn_given(m, "fl_nn_add_param", "the module") ||
        !fl__nn_given(p, "fl_nn_add_param", "the parameter") ||
        !fl__nn_name_free(m, "fl_nn_add_param", name) ||
        !fl__grow(&m->param, &m->param_cap_, m->n_param + 1, sizeof *m->param))
        return fl_raise();
    fl_nn_param *slot = &m->param[m->n_param++];
    snprintf(slot->name, FL_NN_NAME, "%s", name);
    return slot->var = fv_keep(p);
}

FL_API fl_tensor *fl_nn_add_buffer(fl_nn_module *m, const char *name, fl_tensor *t) {
    if (!fl__nn_given(m, "fl_nn_add_buffer", "the module") ||
        !fl__nn_given(t, "fl_nn_add_buffer", "the tensor") ||
        !fl__nn_name_free(m, "fl_nn_add_buffer", name) ||
        !fl__grow(&m->buffer, &m->buffer_cap_, m->n_buffer + 1, sizeof *m->buffer))
        return fl_raise();
    fl_nn_buffer *slot = &m->buffer[m->n_buffer++];
    snprintf(slot->name, FL_NN_NAME, "%s", name);
    return slot->tensor = fl_keep(t);
}

/* modules: calls */

static bool fl__nn_inputs_ok(const fl_nn_module *m, const fl_vars *in) {
    if (!fl__nn_given(m, "fl_nn_forward", "the module")) return false;
    const int want = m->type->inputs;
    if (in->n < 0 || in->n > FL_VARS_MAX || (want && in->n != want)) {
        fl_nn_fail(m, "%d inputs, takes %d", in->n, want ? want : FL_VARS_MAX);
        return false;
    }
    for (int i = 0; i < in->n; i++) {
        if (in->v[i]) continue;
        if (!fl_error()) fl_nn_fail(m, "input %d is NULL", i);
        return false;
    }
    return true;
}

/* All results are there, or an error is pending. */
static bool fl__nn_results_ok(const fl_nn_module *m, const fl_vars *out) {
    bool ok = out->n > 0 && out->n <= FL_VARS_MAX;
    for (int i = 0; ok && i < out->n; i++) ok = out->v[i] != NULL;
    if (!ok && !fl_error()) fl_nn_fail(m, "forward gave no result");
    return ok;
}

/* Gives the references to the innermost scope; all of them are given, or dropped. */
static bool fl__nn_own(fl_vars *vars) {
    bool ok = true;
    for (int i = 0; i < vars->n; i++) ok = fl_obj_own(&vars->v[i]->obj) && ok;
    return ok;
}

FL_API fl_vars fl_nn_forward_vars(fl_nn_module *m, fl_vars in) {
    fl_vars out = {0};
    bool ok = fl__nn_inputs_ok(m, &in);
    if (ok) {
        fl_scope s = fl_scope_begin();
        out = m->type->forward(m, in);
        ok = fl__nn_results_ok(m, &out);
        for (int i = out.n; ok && i-- > 0;) fl_obj_take(&out.v[i]->obj);
        fl_scope_end(&s);
        if (ok) ok = fl__nn_own(&out);
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

static bool fl__nn_list(fl_nn_module *root, const fl_nn_module *m) {
    for (int64_t i = 0; i < m->n_param; i++) {
        fl_var *p = m->param[i].var;
        if (fl__nn_listed(root, p)) continue;
        if (!fl__grow(&root->list_, &root->list_cap_, root->list_n_ + 1, sizeof *root->list_))
            return false;
        root->list_[root->list_n_++] = p;
    }
    for (int64_t i = 0; i < m->n_child; i++)
        if (!fl__nn_list(root, m->child[i])) return false;
    return true;
}

FL_API fv_list fl_nn_parameters(fl_nn_module *m) {
    if (fl__nn_given(m, "fl_nn_parameters", "the module")) {
        m->list_n_ = 0;
        if (fl__nn_list(m, m)) return (fv_list){(int)m->list_n_, m->list_};
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
    if (!m) return;
    m->train = on;
    for (int64_t i = 0; i < m->n_child; i++) fl_nn_train(m->child[i], on);
}

FL_API void fl_nn_zero_grad(fl_nn_module *m) {
    if (!m) return;
    for (int64_t i = 0; i < m->n_param; i++) fv_zero_grad(m->param[i].var);
    for (int64_t i = 0; i < m->n_child; i++) fl_nn_zero_grad(m->child[i]);
}

/* The module that holds the last name of path; *last is that name. */
static fl_nn_module *fl__nn_holder(fl_nn_module *m, const char *path, const char **last) {
    if (!path) return NULL;
    for (const char *dot; m && (dot = strchr(path, '.')); path = dot + 1) {
        int64_t i = fl__nn_child_at(m, path, (size_t)(dot - path));
        m = i < 0 ? NULL : m->child[i];
    }
    *last = path;
    return m;
}

FL_API fl_nn_module *fl_nn_find(fl_nn_module *m, const char *path) {
    if (m && path && !*path) return m;
    m = fl__nn_holder(m, path, &path);
    const int64_t i = m ? fl__nn_child_at(m, path, strlen(path)) : -1;
    return i < 0 ? NULL : m->child[i];
}

FL_API fl_var *fl_nn_get_param(fl_nn_module *m, const char *path) {
    m = fl__nn_holder(m, path, &path);
    const int64_t i = m ? fl__nn_param_at(m, path) : -1;
    return i < 0 ? NULL : m->param[i].var;
}

FL_API fl_tensor *fl_nn_get_buffer(fl_nn_module *m, const char *path) {
    m = fl__nn_holder(m, path, &path);
    const int64_t i = m ? fl__nn_buffer_at(m, path) : -1;
    return i < 0 ? NULL : m->buffer[i].tensor;
}

/* Calls fn for each module of the tree with its path and a dot ("" for the first); path holds `len`
   bytes so far. */
typedef bool (*fl__nn_each_fn)(fl_nn_module *m, const char *prefix, void *user);
static bool fl__nn_each(fl_nn_module *m, char *path, size_t len, fl__nn_each_fn fn, void *user) {
    if (!fn(m, path, user)) return false;
    for (int64_t i = 0; i < m->n_child; i++) {
        const size_t n = strlen(m->child[i]->name) + 1;
        if (len + n + FL_NN_NAME > FL_NN_PATH)
            return fl_fail("fl_nn: a path below '%s' is longer than %d characters", path,
                           FL_NN_PATH - 1);
        snprintf(path + len, FL_NN_PATH - len, "%s.", m->child[i]->name);
        const bool ok = fl__nn_each(m->child[i], path, len + n, fn, user);
        path[len] = '\0';
        if (!ok) return false;
    }
    return true;
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

FL_API bool fl_nn_named(fl_nn_module *m, fl_nn_visit_fn fn, void *user) {
    char path[FL_NN_PATH] = "";
    fl__nn_visitor v = {fn, user};
    return fl__nn_given(m, "fl_nn_named", "the module") &&
           (fn || fl_fail("fl_nn_named: the function is NULL")) &&
           fl__nn_each(m, path, 0, fl__nn_visit, &v);
}

/* trees: printing */

typedef struct fl__nn_text {
    char *buf;
    size_t size;
    int64_t n; /* characters so far, written or not */
} fl__nn_text;

FL_PRINTF(2, 3) static void fl__nn_put(fl__nn_text *t, const char *format, ...) {
    const size_t at = (size_t)t->n, left = t->size > at ? t->size - at : 0;
    va_list args;
    va_start(args, format);
    t->n += vsnprintf(left ? t->buf + at : NULL, left, format, args);
    va_end(args);
}

static void fl__nn_put_module(fl__nn_text *t, const fl_nn_module *m, int indent) {
    char text[256] = "";
    if (m->type->describe) m->type->describe(m, text, sizeof text);
    fl__nn_put(t, "%s(%s", m->kind, text);
    for (int64_t i = 0; i < m->n_child; i++) {
        fl__nn_put(t, "\n%*s(%s): ", indent + 2, "", m->child[i]->name);
        fl__nn_put_module(t, m->child[i], indent + 2);
    }
    if (m->n_child) fl__nn_put(t, "\n%*s", indent, "");
    fl__nn_put(t, ")");
}

FL_API int64_t fl_nn_format(const fl_nn_module *m, char *buf, size_t size) {
    fl__nn_text t = {buf, size, 0};
    if (size) buf[0] = '\0';
    if (m) fl__nn_put_module(&t, m, 0);
    return t.n;
}

FL_API bool fl_nn_print(const fl_nn_module *m) {
    const size_t n = (size_t)fl_nn_format(m, NULL, 0) + 1;
    char *text = fl__alloc(n);
    if (!text) return false;
    fl_nn_format(m, text, n);
    const bool ok = puts(text) >= 0;
    fl__free(text);
    return ok ? true : fl_fail("fl_nn_print: cannot write to stdout");
}

/* containers */

/* Values that the scope holds through this one object, so that they can go before it ends. */
typedef struct fl__nn_held {
    fl_obj obj;
    fl_vars vars;
} fl__nn_held;

static void fl__nn_let_go(fl_vars vars) {
    for (int i = 0; i < vars.n; i++) fv_drop(vars.v[i]);
}

static void fl__nn_held_drop(fl_obj *o) {
    fl__nn_let_go(((fl__nn_held *)(void *)o)->vars);
    fl_obj_free(o);
}

static bool fl__nn_is_relu(const fl_nn_module *m);
static bool fl__nn_is_max_pool(const fl_nn_module *m);

static bool fl__nn_pools_first(const fl_nn_module *m, int64_t i) {
    return i >= 0 && i + 1 < m->n_child && fl__nn_is_relu(m->child[i]) &&
           fl__nn_is_max_pool(m->child[i + 1]);
}

/* The child whose turn is the i-th. Max pooling right behind a ReLU goes before it: values and
   gradients are the same, and ReLU has, and keeps, fewer numbers. */
static fl_nn_module *fl__nn_in_turn(const fl_nn_module *m, int64_t i) {
    if (fl__nn_pools_first(m, i)) return m->child[i + 1];
    return m->child[fl__nn_pools_first(m, i - 1) ? i - 1 : i];
}

/* What a layer gave dies as soon as the next one has run, unless its backward reads it. */
static fl_vars fl__nn_sequential_forward(fl_nn_module *m, fl_vars in) {
    fl__nn_held *held = fl_obj_new(sizeof *held, fl__nn_held_drop);
    if (!held || !fl_obj_own(&held->obj)) return (fl_vars){0};
    for (int64_t i = 0; i < m->n_child && in.n; i++) {
        const fl_vars last = held->vars;
        fl_scope s = fl_scope_begin();
        in = fl_nn_forward_vars(fl__nn_in_turn(m, i), in);
        for (int k = in.n; k-- > 0;) fl_obj_take(&in.v[k]->obj);
        held->vars = in;
        fl_scope_end(&s);
        fl__nn_let_go(last);
    }
    return in;
}

static const fl_nn_type fl__nn_sequential_type = {
    .name = "Sequential",
    .maker = "fl_nn_sequential",
    .forward = fl__nn_sequential_forward,
};

FL_API fl_nn_module *fl_nn_sequential_of(int n, fl_nn_module *const *children) {
    fl_quiet(+1);
    fl_nn_module *m = fl_nn_new(&fl__nn_sequential_type, NULL, 0);
    bool ok = m != NULL;
    for (int i = 0; i < n; i++) {
        if (ok) ok = fl_nn_add(m, NULL, children[i]) != NULL;
        else if (children[i] && !children[i]->parent) fl_nn_free(children[i]);
    }
    return fl__nn_made(m, ok);
}

/* layers without parameters */

FL_PRIVATE void fl__nn_describe_shape(const fl_shape *s, char *buf, size_t size) {
    fl__nn_text t = {buf, size, 0};
    fl__nn_put(&t, "(");
    for (int i = 0; i < s->ndim; i++) fl__nn_put(&t, "%s%" PRId64, i ? ", " : "", s->dim[i]);
    fl__nn_put(&t, s->ndim == 1 ? ",)" : ")");
}

static fl_vars fl__nn_view_forward(fl_nn_module *m, fl_vars in) {
    const fl_tensor *x = fv_value(in.v[0]);
    const fl_shape *want = m->data;
    fl_shape s = *want;
    int64_t known = 1, free_dim = -1;
    if (s.ndim && s.dim[0] == -1 && x->ndim) s.dim[0] = x->shape[0];
    for (int i = 0; i < s.ndim; i++) {
        if (s.dim[i] < 0) free_dim = i;
        else known *= s.dim[i];
    }
    if (free_dim >= 0 && known > 0) s.dim[free_dim] = fl_numel(x) / known;
    if (fl_shape_numel(s) != fl_numel(x)) {
        char a[FL__NN_SHAPE], b[FL__NN_SHAPE];
        return fl_nn_fail(m, "input %s does not fit %s", fl__nn_shape(in.v[0], a),
                          fl_shape_text(*want, b, sizeof b));
    }
    return FL_VARS(fv_reshape(in.v[0], s));
}

static void fl__nn_view_describe(const fl_nn_module *m, char *buf, size_t size) {
    fl__nn_describe_shape(m->data, buf, size);
}

static const fl_nn_type fl__nn_view_type = {
    .name = "View",
    .maker = "fl_nn_view",
    .inputs = 1,
    .forward = fl__nn_view_forward,
    .describe = fl__nn_view_describe,
};

FL_API fl_nn_module *fl_nn_view(fl_shape shape) {
    fl_shape rest = shape; /* without the two dims that may be -1 */
    int open = 0;
    for (int i = 0; i < shape.ndim && i < FL_MAX_DIMS; i++) {
        if (shape.dim[i] != -1) continue;
        rest.dim[i] = 1;
        open += i > 0;
    }
    if (shape.ndim < 0 || shape.ndim > FL_MAX_DIMS || open > 1 || fl_shape_numel(rest) < 0) {
        char text[FL__NN_SHAPE];
        fl_fail("fl_nn_view: %s is no shape: one dim besides the first may be -1",
                fl_shape_text(shape, text, sizeof text));
        return fl_raise();
    }
    return fl_nn_new(&fl__nn_view_type, &shape, sizeof shape);
}

typedef struct fl__nn_activation {
    fl_var *(*fn)(fl_var *x);
} fl__nn_activation;

static fl_vars fl__nn_activation_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_activation *a = m->data;
    return FL_VARS(a->fn(in.v[0]));
}

static const fl_nn_type fl__nn_activation_type = {
    .name = "Activation",
    .inputs = 1,
    .forward = fl__nn_activation_forward,
};

static bool fl__nn_is_relu(const fl_nn_module *m) {
    const fl__nn_activation *a = m->data;
    return m->type == &fl__nn_activation_type && a->fn == fv_relu;
}

FL_API fl_nn_module *fl_nn_activation(const char *name, fl_var *(*fn)(fl_var *x)) {
    const fl__nn_activation a = {fn};
    if (!fn) {
        fl_fail("fl_nn_activation: no function");
        return fl_raise();
    }
    fl_nn_module *m = fl_nn_new(&fl__nn_activation_type, &a, sizeof a);
    if (m && name) m->kind = name;
    return m;
}

FL_API fl_nn_module *fl_nn_relu(void) {
    return fl_nn_activation("ReLU", fv_relu);
}
FL_API fl_nn_module *fl_nn_gelu(void) {
    return fl_nn_activation("GELU", fv_gelu);
}
FL_API fl_nn_module *fl_nn_tanh(void) {
    return fl_nn_activation("Tanh", fv_tanh);
}
FL_API fl_nn_module *fl_nn_sigmoid(void) {
    return fl_nn_activation("Sigmoid", fv_sigmoid);
}

static fl_vars fl__nn_log_softmax_forward(fl_nn_module *m, fl_vars in) {
    const int axis = *(const int *)m->data, ndim = fv_value(in.v[0])->ndim;
    if (axis < -ndim || axis >= ndim) {
        char text[FL__NN_SHAPE];
        return fl_nn_fail(m, "axis %d, input %s", axis, fl__nn_shape(in.v[0], text));
    }
    return FL_VARS(fv_log_softmax(in.v[0], axis));
}

static void fl__nn_log_softmax_describe(const fl_nn_module *m, char *buf, size_t size) {
    snprintf(buf, size, "dim=%d", *(const int *)m->data);
}

static const fl_nn_type fl__nn_log_softmax_type = {
    .name = "LogSoftmax",
    .maker = "fl_nn_log_softmax",
    .inputs = 1,
    .forward = fl__nn_log_softmax_forward,
    .describe = fl__nn_log_softmax_describe,
};

FL_API fl_nn_module *fl_nn_log_softmax(int axis) {
    return fl_nn_new(&fl__nn_log_softmax_type, &axis, sizeof axis);
}

typedef struct fl__nn_dropout {
    double p;
    fl_rng *rng;
} fl__nn_dropout;

static fl_vars fl__nn_dropout_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_dropout *d = m->data;
    if (!m->train || d->p == 0) return in;
    return FL_VARS(fv_dropout(in.v[0], d->p, d->rng));
}

static void fl__nn_dropout_describe(const fl_nn_module *m, char *buf, size_t size) {
    snprintf(buf, size, "p=%g", ((const fl__nn_dropout *)m->data)->p);
}

static const fl_nn_type fl__nn_dropout_type = {
    .name = "Dropout",
    .maker = "fl_nn_dropout",
    .inputs = 1,
    .forward = fl__nn_dropout_forward,
    .describe = fl__nn_dropout_describe,
};

FL_API fl_nn_module *fl_nn_dropout_opt(double p, fl_nn_dropout_opts o) {
    const fl__nn_dropout d = {p, o.rng};
    if (!(p >= 0 && p <= 1)) {
        fl_fail("fl_nn_dropout: p is %g, must be in [0, 1]", p);
        return fl_raise();
    }
    return fl_nn_new(&fl__nn_dropout_type, &d, sizeof d);
}

/* The resolved second of a pair of options: 0 means as the first. */
static int64_t fl__nn_second(int64_t second, int64_t first) {
    return fl_option_int(second, first);
}

typedef struct fl__nn_pool2d {
    int64_t kernel;
    bool average;
    fl_pool2d_opts opts;
} fl__nn_pool2d;

static fl_vars fl__nn_pool2d_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_pool2d *p = m->data;
    if (fv_value(in.v[0])->ndim != 4) {
        char text[FL__NN_SHAPE];
        return fl_nn_fail(m, "input %s, wants [n, c, h, w]", fl__nn_shape(in.v[0], text));
    }
    return FL_VARS(p->average ? fv_avg_pool2d_opt(in.v[0], p->kernel, p->opts)
                              : fv_max_pool2d_opt(in.v[0], p->kernel, p->opts));
}

static void fl__nn_put_tuple(fl__nn_text *t, const char *name, int64_t a, int64_t b) {
    fl__nn_put(t, "%s%s=(%" PRId64 ", %" PRId64 ")", t->n ? ", " : "", name, a, b);
}

/* The same, but "name=2" where both are 2; padding "same". */
static void fl__nn_put_pair(fl__nn_text *t, const char *name, int64_t a, int64_t b) {
    const char *comma = t->n ? ", " : "";
    if (a != b) fl__nn_put_tuple(t, name, a, b);
    else if (a == FL_SAME) fl__nn_put(t, "%s%s=same", comma, name);
    else fl__nn_put(t, "%s%s=%" PRId64, comma, name, a);
}

static void fl__nn_pool2d_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_pool2d *p = m->data;
    const fl_pool2d_opts *o = &p->opts;
    const int64_t kw = fl__nn_second(o->kernel_w, p->kernel), pad = fl_option_int(o->pad, 0);
    fl__nn_text t = {buf, size, 0};
    fl__nn_put_pair(&t, "kernel_size", p->kernel, kw);
    fl__nn_put_pair(&t, "stride", o->stride ? o->stride : p->kernel,
                    o->stride_w ? o->stride_w : o->stride ? o->stride : kw);
    fl__nn_put_pair(&t, "padding", pad, fl__nn_second(o->pad_w, pad));
}

static const fl_nn_type fl__nn_pool2d_type = {
    .name = "MaxPool2d",
    .maker = "fl_nn_pool2d",
    .inputs = 1,
    .forward = fl__nn_pool2d_forward,
    .describe = fl__nn_pool2d_describe,
};

static bool fl__nn_is_max_pool(const fl_nn_module *m) {
    const fl__nn_pool2d *p = m->data;
    return m->type == &fl__nn_pool2d_type && !p->average;
}

FL_API fl_nn_module *fl_nn_pool2d_opt(int64_t kernel, fl_nn_pool2d_opts o) {
    const fl_pool2d_opts opts = {.kernel_w = o.kernel_w, .stride = o.stride, .stride_w = o.stride_w,
                                 .pad = o.pad, .pad_w = o.pad_w, .ignore_pad = o.ignore_pad};
    const fl__nn_pool2d p = {kernel, o.average, opts};
    if (kernel < 1 || o.kernel_w < 0 || o.stride < 0 || o.stride_w < 0) {
        fl_fail("fl_nn_pool2d: kernel %" PRId64 ", stride %" PRId64 ": must be positive", kernel,
                o.stride);
        return fl_raise();
    }
    fl_nn_module *m = fl_nn_new(&fl__nn_pool2d_type, &p, sizeof p);
    if (m && o.average) m->kind = "AvgPool2d";
    return m;
}

/* layers with parameters */

FL_PRIVATE fl_var *fl__nn_param(const fl_nn_module *m, int64_t i) {
    return i < m->n_param ? m->param[i].var : NULL;
}

FL_PRIVATE bool fl__nn_dtype_ok(const char *who, fl_dtype dtype) {
    return dtype == FL_DTYPE_NONE || fl_dtype_is_float(dtype) ? true
        : fl_fail("%s: dtype %s, parameters are float", who, fl_dtype_name(dtype));
}

FL_PRIVATE fl_nn_module *fl__nn_weighted(fl_nn_module *m, fl_shape w, bool no_bias, fl_dtype dtype,
                                         fl_rng *rng) {
    fl_scope s = fl_scope_begin();
    double fan_in = 1;
    for (int i = 1; i < w.ndim; i++) fan_in *= (double)w.dim[i];
    const double bound = 1 / sqrt(fan_in);
    const fl_shape b = FL_SHAPE(w.dim[0]);
    bool ok = m && fl_nn_add_param(m, "weight", fv_param(fl_uniform(w, -bound, bound, dtype, rng)));
    if (ok && !no_bias)
        ok = fl_nn_add_param(m, "bias", fv_param(fl_uniform(b, -bound, bound, dtype, rng))) != NULL;
    fl_scope_end(&s);
    return fl__nn_made(m, ok);
}

typedef struct fl__nn_linear {
    int64_t in, out;
    fl_op act;
} fl__nn_linear;

static fl_vars fl__nn_linear_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_linear *l = m->data;
    fl_var *x = in.v[0], *w = fl__nn_param(m, 0), *b = fl__nn_param(m, 1);
    fl_shape shape = fl_shape_of(fv_value(x));
    if (!shape.ndim || shape.dim[shape.ndim - 1] != l->in) {
        char a[FL__NN_SHAPE], c[FL__NN_SHAPE];
        return fl_nn_fail(m, "input %s, weight %s", fl__nn_shape(x, a), fl__nn_shape(w, c));
    }
    return FL_VARS(fv_linear_act(x, w, b, l->act));
}

static void fl__nn_linear_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_linear *l = m->data;
    snprintf(buf, size, "in_features=%" PRId64 ", out_features=%" PRId64 ", bias=%s%s%s", l->in,
             l->out, fl__nn_param(m, 1) ? "True" : "False", l->act ? ", act=" : "",
             l->act ? fl_op_get_info(l->act)->name : "");
}

static const fl_nn_type fl__nn_linear_type = {
    .name = "Linear",
    .maker = "fl_nn_linear",
    .inputs = 1,
    .forward = fl__nn_linear_forward,
    .describe = fl__nn_linear_describe,
};

FL_API fl_nn_module *fl_nn_linear_opt(int64_t in, int64_t out, fl_nn_linear_opts o) {
    const fl__nn_linear l = {in, out, o.act};
    bool ok = in >= 1 && out >= 1;
    if (!ok) fl_fail("fl_nn_linear: in %" PRId64 ", out %" PRId64 ": must be positive", in, out);
    if (ok && !fl_linear_takes(o.act))
        ok = fl_fail("fl_nn_linear: .act: op %d is no activation that fl_linear_act takes", (int)o.act);
    if (!ok || !fl__nn_dtype_ok("fl_nn_linear", o.dtype)) return fl_raise();
    fl_quiet(+1);
    fl_nn_module *m = fl_nn_new(&fl__nn_linear_type, &l, sizeof l);
    return fl__nn_weighted(m, FL_SHAPE(out, in), o.no_bias, o.dtype, o.rng);
}

typedef struct fl__nn_conv2d {
    int64_t in, out, kernel[2];
    bool channels_last;
    fl_conv2d_opts opts;
} fl__nn_conv2d;

/* x [n, c, h, w] lies in memory as [n, h, w, c]. */
static bool fl__nn_is_channels_last(const fl_tensor *x) {
    const int64_t c = x->shape[1], h = x->shape[2], w = x->shape[3];
    return (c == 1 || x->stride[1] == 1) && (w == 1 || x->stride[3] == c) &&
           (h == 1 || x->stride[2] == c * w) && (x->shape[0] == 1 || x->stride[0] == c * w * h);
}

static fl_vars fl__nn_conv2d_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_conv2d *c = m->data;
    const fl_tensor *x = fv_value(in.v[0]);
    if (x->ndim != 4 || x->shape[1] != c->in) {
        char a[FL__NN_SHAPE], b[FL__NN_SHAPE];
        return fl_nn_fail(m, "input %s, weight %s, wants [n, %" PRId64 ", h, w]",
                          fl__nn_shape(in.v[0], a), fl__nn_shape(fl__nn_param(m, 0), b), c->in);
    }
    fl_var *image = in.v[0];
    if (c->channels_last && !fl__nn_is_channels_last(x)) image = fv_channels_last(image);
    return FL_VARS(fv_conv2d_opt(image, fl__nn_param(m, 0), fl__nn_param(m, 1), c->opts));
}

static void fl__nn_conv2d_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_conv2d *c = m->data;
    const fl_conv2d_opts *o = &c->opts;
    const int64_t stride = fl_option_int(o->stride, 1), dilation = fl_option_int(o->dilation, 1);
    const int64_t pad = fl_option_int(o->pad, 0), pad_w = fl__nn_second(o->pad_w, pad);
    const int64_t dilation_w = fl__nn_second(o->dilation_w, dilation);
    fl__nn_text t = {buf, size, 0};
    fl__nn_put(&t, "%" PRId64 ", %" PRId64, c->in, c->out);
    fl__nn_put_tuple(&t, "kernel_size", c->kernel[0], c->kernel[1]);
    fl__nn_put_tuple(&t, "stride", stride, fl__nn_second(o->stride_w, stride));
    if (pad == FL_SAME && pad_w == FL_SAME) fl__nn_put(&t, ", padding=same");
    else if (pad || pad_w) fl__nn_put_tuple(&t, "padding", pad, pad_w);
    if (dilation != 1 || dilation_w != 1) fl__nn_put_tuple(&t, "dilation", dilation, dilation_w);
    if (o->groups > 1) fl__nn_put(&t, ", groups=%" PRId64, o->groups);
    if (!fl__nn_param(m, 1)) fl__nn_put(&t, ", bias=False");
}

static const fl_nn_type fl__nn_conv2d_type = {
    .name = "Conv2d",
    .maker = "fl_nn_conv2d",
    .inputs = 1,
    .forward = fl__nn_conv2d_forward,
    .describe = fl__nn_conv2d_describe,
};

static bool fl__nn_conv2d_ok(const fl__nn_conv2d *c) {
    const fl_conv2d_opts *o = &c->opts;
    const int64_t kh = c->kernel[0], kw = c->kernel[1], groups = fl_option_int(o->groups, 1);
    if (c->in < 1 || c->out < 1 || kh < 1 || kw < 1)
        return fl_fail("fl_nn_conv2d: in %" PRId64 ", out %" PRId64 ", kernel [%" PRId64
                       ", %" PRId64 "]: must be positive",
                       c->in, c->out, kh, kw);
    if (o->stride < 0 || o->stride_w < 0 || o->dilation < 0 || o->dilation_w < 0)
        return fl_fail("fl_nn_conv2d: stride [%" PRId64 ", %" PRId64 "], dilation [%" PRId64
                       ", %" PRId64 "]: must be positive",
                       o->stride, o->stride_w, o->dilation, o->dilation_w);
    if (groups < 1 || c->in % groups || c->out % groups)
        return fl_fail("fl_nn_conv2d: groups %" PRId64 " must divide in %" PRId64
                       " and out %" PRId64,
                       groups, c->in, c->out);
    return true;
}

FL_API fl_nn_module *fl_nn_conv2d_opt(int64_t in, int64_t out, int64_t kernel,
                                      fl_nn_conv2d_opts o) {
    const int64_t groups = fl_option_int(o.groups, 1), kw = fl__nn_second(o.kernel_w, kernel);
    const fl_conv2d_opts opts = {.stride = o.stride, .stride_w = o.stride_w,
                                 .pad = o.pad, .pad_w = o.pad_w,
                                 .dilation = o.dilation, .dilation_w = o.dilation_w,
                                 .groups = o.groups};
    const fl__nn_conv2d c = {in, out, {kernel, kw}, false, opts};
    if (!fl__nn_conv2d_ok(&c) || !fl__nn_dtype_ok("fl_nn_conv2d", o.dtype)) return fl_raise();
    fl_quiet(+1);
    fl_nn_module *m = fl_nn_new(&fl__nn_conv2d_type, &c, sizeof c);
    return fl__nn_weighted(m, FL_SHAPE(out, in / groups, kernel, kw), o.no_bias, o.dtype, o.rng);
}

static bool fl__nn_to_channels_last(fl_nn_module *m, const char *prefix, void *user) {
    (void)prefix, (void)user;
    if (m->type != &fl__nn_conv2d_type) return true;
    fl_scope s = fl_scope_begin();
    fl_var *w = fl__nn_param(m, 0);
    fl_tensor *stored = fl_channels_last(fv_value(w));
    fl_var *next = stored ? fv_keep(fv_param(stored)) : NULL;
    fl_scope_end(&s);
    if (!next) return false;
    m->param[0].var = next;
    fv_drop(w);
    ((fl__nn_conv2d *)m->data)->channels_last = true;
    return true;
}

FL_API bool fl_nn_channels_last(fl_nn_module *m) {
    char path[FL_NN_PATH] = "";
    if (fl__nn_given(m, "fl_nn_channels_last", "the module") &&
        fl__nn_each(m, path, 0, fl__nn_to_channels_last, NULL))
        return true;
    fl_raise();
    return false;
}

/* layers that normalise */

FL_PRIVATE bool fl__nn_add_affine(fl_nn_module *m, fl_shape shape, bool no_bias, fl_dtype dtype) {
    return fl_nn_add_param(m, "weight", fv_param(fl_ones(shape, dtype))) &&
           (no_bias || fl_nn_add_param(m, "bias", fv_param(fl_zeros(shape, dtype))));
}

typedef struct fl__nn_batch_norm {
    int64_t channels;
    double momentum, eps;
    bool cumulative, track, relu;
} fl__nn_batch_norm;

enum { FL__NN_RUNNING_MEAN, FL__NN_RUNNING_VAR, FL__NN_BATCHES }; /* the buffers' order */

static fl_vars fl__nn_batch_norm_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_batch_norm *b = m->data;
    const fl_tensor *x = fv_value(in.v[0]);
    const bool batch = m->train || !b->track;
    char text[FL__NN_SHAPE];
    if (in.n != 1 && in.n != 2) return fl_nn_fail(m, "%d inputs, takes 1 or 2", in.n);
    if (x->ndim != 4 || x->shape[1] != b->channels)
        return fl_nn_fail(m, "input %s, wants [n, %" PRId64 ", h, w]", fl__nn_shape(in.v[0], text),
                          b->channels);
    const int64_t n = fl_numel(x) / b->channels;
    if (batch && n < 2)
        return fl_nn_fail(m, "input %s has %" PRId64 " values per channel, batch statistics want 2",
                          fl__nn_shape(in.v[0], text), n);
    fl_batch_norm_opts o = {
        .train = batch, .momentum = b->momentum, .eps = b->eps, .relu = b->relu};
    fl_tensor *batches = b->track ? m->buffer[FL__NN_BATCHES].tensor : NULL;
    fl_tensor *next = batch && b->track ? fl_add(batches, fl_int(1)) : NULL;
    if (b->track) {
        o.mean = m->buffer[FL__NN_RUNNING_MEAN].tensor;
        o.var = m->buffer[FL__NN_RUNNING_VAR].tensor;
        if (batch && !next) return (fl_vars){0};
        if (batch && b->cumulative) o.momentum = 1.0 / (double)fl_item_int(next);
    }
    if (o.momentum == 0) o.momentum = FL_ZERO;
    if (o.eps == 0) o.eps = FL_ZERO;
    fl_var *weight = m->n_param ? fl__nn_param(m, 0) : NULL;
    fl_var *bias = weight ? fl__nn_param(m, 1) : NULL;
    fl_var *y = in.n == 2 ? fv_batch_norm_add_opt(in.v[0], weight, bias, in.v[1], o)
                          : fv_batch_norm_opt(in.v[0], weight, bias, o);
    if (y && next && !fl_assign(batches, next)) return (fl_vars){0};
    return FL_VARS(y);
}

static void fl__nn_batch_norm_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_batch_norm *b = m->data;
    fl__nn_text t = {buf, size, 0};
    fl__nn_put(&t, "%" PRId64 ", eps=%g, momentum=", b->channels, b->eps);
    if (b->cumulative) fl__nn_put(&t, "None");
    else fl__nn_put(&t, "%g", b->momentum);
    fl__nn_put(&t, ", affine=%s, track_running_stats=%s", m->n_param ? "True" : "False",
               b->track ? "True" : "False");
    if (b->relu) fl__nn_put(&t, ", relu=True");
}

static const fl_nn_type fl__nn_batch_norm_type = {
    .name = "BatchNorm2d",
    .maker = "fl_nn_batch_norm2d",
    .forward = fl__nn_batch_norm_forward,
    .describe = fl__nn_batch_norm_describe,
};

static bool fl__nn_add_statistics(fl_nn_module *m, fl_shape shape, fl_dtype dtype) {
    return fl_nn_add_buffer(m, "running_mean", fl_zeros(shape, dtype)) &&
           fl_nn_add_buffer(m, "running_var", fl_ones(shape, dtype)) &&
           fl_nn_add_buffer(m, "num_batches_tracked", fl_zeros(FL_SCALAR_SHAPE, FL_I64));
}

FL_API fl_nn_module *fl_nn_batch_norm2d_opt(int64_t channels, fl_nn_batch_norm_opts o) {
    const fl__nn_batch_norm b = {channels, fl_option(o.momentum, 0.1), fl_option(o.eps, 1e-5),
                                 o.cumulative, !o.no_track, o.relu};
    if (channels < 1 || !(b.eps >= 0) || !(b.momentum >= 0 && b.momentum <= 1)) {
        fl_fail("fl_nn_batch_norm2d: %" PRId64 " channels, momentum %g, eps %g", channels,
                b.momentum, b.eps);
        return fl_raise();
    }
    if (!fl__nn_dtype_ok("fl_nn_batch_norm2d", o.dtype)) return fl_raise();
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_nn_module *m = fl_nn_new(&fl__nn_batch_norm_type, &b, sizeof b);
    bool ok = m != NULL;
    if (ok && !o.no_affine) ok = fl__nn_add_affine(m, FL_SHAPE(channels), false, o.dtype);
    if (ok && !o.no_track) ok = fl__nn_add_statistics(m, FL_SHAPE(channels), o.dtype);
    fl_scope_end(&s);
    return fl__nn_made(m, ok);
}

typedef struct fl__nn_layer_norm {
    fl_shape shape;
    double eps;
} fl__nn_layer_norm;

FL_PRIVATE bool fl__nn_trailing(const fl_tensor *x, const fl_shape *shape) {
    const int lead = x->ndim - shape->ndim;
    bool ok = lead >= 0;
    for (int i = 0; ok && i < shape->ndim; i++) ok = x->shape[lead + i] == shape->dim[i];
    return ok;
}

static fl_vars fl__nn_layer_norm_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_layer_norm *l = m->data;
    if (!fl__nn_trailing(fv_value(in.v[0]), &l->shape)) {
        char a[FL__NN_SHAPE], b[FL__NN_SHAPE];
        return fl_nn_fail(m, "input %s does not end in %s", fl__nn_shape(in.v[0], a),
                          fl_shape_text(l->shape, b, sizeof b));
    }
    return FL_VARS(fv_layer_norm(in.v[0], l->shape.ndim, m->n_param > 0 ? fl__nn_param(m, 0) : NULL,
                                 m->n_param > 1 ? fl__nn_param(m, 1) : NULL, l->eps));
}

static void fl__nn_layer_norm_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_layer_norm *l = m->data;
    char shape[FL__NN_SHAPE];
    fl__nn_describe_shape(&l->shape, shape, sizeof shape);
    snprintf(buf, size, "%s, eps=%g, elementwise_affine=%s", shape, l->eps,
             m->n_param ? "True" : "False");
}

static const fl_nn_type fl__nn_layer_norm_type = {
    .name = "LayerNorm",
    .maker = "fl_nn_layer_norm",
    .inputs = 1,
    .forward = fl__nn_layer_norm_forward,
    .describe = fl__nn_layer_norm_describe,
};

FL_API fl_nn_module *fl_nn_layer_norm_opt(fl_shape shape, fl_nn_layer_norm_opts o) {
    const fl__nn_layer_norm l = {shape, fl_option(o.eps, 1e-5)};
    if (shape.ndim < 1 || shape.ndim > FL_MAX_DIMS || fl_shape_numel(shape) < 1 || !(l.eps >= 0)) {
        char text[FL__NN_SHAPE];
        fl_fail("fl_nn_layer_norm: shape %s, eps %g", fl_shape_text(shape, text, sizeof text),
                l.eps);
        return fl_raise();
    }
    if (!fl__nn_dtype_ok("fl_nn_layer_norm", o.dtype)) return fl_raise();
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_nn_module *m = fl_nn_new(&fl__nn_layer_norm_type, &l, sizeof l);
    const bool ok = m && (o.no_affine || fl__nn_add_affine(m, shape, o.no_bias, o.dtype));
    fl_scope_end(&s);
    return fl__nn_made(m, ok);
}

/* initialisation */

/* Overwrites p with t, made on the scope s, and ends the scope. */
static bool fl__nn_overwrite(fl_scope *s, fl_var *p, fl_tensor *t) {
    const bool ok = t && fl_assign(fv_value(p), t);
    fl_scope_end(s);
    if (!ok) fl_raise();
    return ok;
}

static bool fl__nn_init_ok(const fl_var *p, const char *who) {
    if (!fl__nn_given(p, who, "the parameter")) {
        fl_raise();
        return false;
    }
    return true;
}

FL_API bool fl_nn_constant_(fl_var *p, double value) {
    if (!fl__nn_init_ok(p, "fl_nn_constant_")) return false;
    fl_scope s = fl_scope_begin();
    return fl__nn_overwrite(&s, p, fl_num(value));
}

FL_API bool fl_nn_uniform_(fl_var *p, double low, double high, fl_rng *rng) {
    if (!fl__nn_init_ok(p, "fl_nn_uniform_")) return false;
    fl_scope s = fl_scope_begin();
    const fl_tensor *t = fv_value(p);
    return fl__nn_overwrite(&s, p, fl_uniform(fl_shape_of(t), low, high, t->dtype, rng));
}

FL_API bool fl_nn_normal_(fl_var *p, double mean, double std, fl_rng *rng) {
    if (!fl__nn_init_ok(p, "fl_nn_normal_")) return false;
    fl_scope s = fl_scope_begin();
    const fl_tensor *t = fv_value(p);
    return fl__nn_overwrite(&s, p, fl_normal(fl_shape_of(t), mean, std, t->dtype, rng));
}

FL_API bool fl_nn_fan(const fl_var *p, int64_t *fan_in, int64_t *fan_out) {
    if (!fl__nn_init_ok(p, "fl_nn_fan")) return false;
    const fl_shape s = fl_shape_of(fv_value(p));
    if (s.ndim < 2) {
        char text[FL__NN_SHAPE];
        fl_fail("fl_nn_fan: a weight has 2 or more dims, this one is %s", fl__nn_shape(p, text));
        fl_raise();
        return false;
    }
    int64_t field = 1;
    for (int i = 2; i < s.ndim; i++) field *= s.dim[i];
    *fan_in = s.dim[1] * field;
    *fan_out = s.dim[0] * field;
    return true;
}

/* A uniform number within b of 0 has deviation b / sqrt(3). */
FL_API bool fl_nn_kaiming_uniform_(fl_var *p, double a, fl_rng *rng) {
    int64_t in, out;
    if (!fl_nn_fan(p, &in, &out)) return false;
    const double bound = sqrt(3.0) * sqrt(2 / (1 + a * a)) / sqrt((double)in);
    return fl_nn_uniform_(p, -bound, bound, rng);
}

FL_API bool fl_nn_kaiming_normal_(fl_var *p, double a, fl_rng *rng) {
    int64_t in, out;
    return fl_nn_fan(p, &in, &out) &&
           fl_nn_normal_(p, 0, sqrt(2 / (1 + a * a)) / sqrt((double)in), rng);
}

FL_API bool fl_nn_glorot_uniform_(fl_var *p, double gain, fl_rng *rng) {
    int64_t in, out;
    if (!fl_nn_fan(p, &in, &out)) return false;
    const double bound = sqrt(3.0) * gain * sqrt(2 / (double)(in + out));
    return fl_nn_uniform_(p, -bound, bound, rng);
}

FL_API bool fl_nn_glorot_normal_(fl_var *p, double gain, fl_rng *rng) {
    int64_t in, out;
    return fl_nn_fan(p, &in, &out) && fl_nn_normal_(p, 0, gain * sqrt(2 / (double)(in + out)), rng);
}

/* losses */

typedef struct fl__nn_class_loss {
    const char *who;
    fl_reduction reduction;
    int64_t ignore;
    double smoothing;
} fl__nn_class_loss;

static bool fl__nn_loss_shapes_ok(const fl__nn_class_loss *l, const fl_tensor *x,
                                  const fl_tensor *target) {
    bool ok = x->ndim >= 2 && target->ndim == x->ndim - 1 && fl_dtype_is_float(x->dtype) &&
              target->dtype == FL_I64;
    for (int i = 0, j = 0; ok && i < x->ndim; i++)
        if (i != 1) ok = target->shape[j++] == x->shape[i];
    if (ok) return true;
    char a[FL__NN_SHAPE], b[FL__NN_SHAPE];
    return fl_fail("%s: input %s %s wants a target [n, ...] i64, has %s %s", l->who,
                   fl_dtype_name(x->dtype), fl_shape_text(fl_shape_of(x), a, sizeof a),
                   fl_dtype_name(target->dtype), fl_shape_text(fl_shape_of(target), b, sizeof b));
}

static fl_var *fl__nn_reduce(fl_var *loss, fl_reduction r) {
    if (r == FL_NONE) return loss;
    return r == FL_SUM ? fv_sum(loss, FL_ALL_AXES) : fv_mean(loss, FL_ALL_AXES);
}

/* Of each target, 0 where it does not count. No value is read on the host: a step can be recorded,
   and runs on a device without waiting. Gather refuses a target that is no class. */
static fl_var *fl__nn_class_losses(const fl__nn_class_loss *l, fl_var *logp, fl_tensor *target) {
    if (!logp) return NULL;
    const fl_tensor *x = fv_value(logp);
    fl_tensor *counts = fl_ne(target, fl_int(l->ignore));
    fl_tensor *class_of = fl_unsqueeze(fl_where(counts, target, fl_int(0)), 1);
    fl_var *loss = fv_neg(fv_squeeze(fv_gather(logp, 1, class_of), 1));
    if (l->smoothing > 0) {
        fl_var *all = fv_mul(fv_sum(logp, FL_AXES(1)), fv_num(-l->smoothing / (double)x->shape[1]));
        loss = fv_add(fv_mul(loss, fv_num(1 - l->smoothing)), all);
    }
    return fv_where(fv_const(counts), loss, fv_num(0));
}

/* The same of logits; one pass, in f32 for halves, where they are rows of classes. */
static fl_var *fl__nn_logit_losses(const fl__nn_class_loss *l, fl_var *x, fl_tensor *target) {
    const fl_tensor *t = fv_value(x);
    fl_cross_entropy_args a = {.smoothing = l->smoothing, .ignore = l->ignore};
    if (t->ndim != 2 || t->weak || fl_numel(t) == 0)
        return fl__nn_class_losses(l, fv_log_softmax(x, 1), target);
    fl_var *wide = fv_cast(x, fl_dtype_wide(t->dtype));
    return wide ? fv_cast(fv__cross_entropy(wide, target, a), t->dtype) : NULL;
}

/* logits: x goes through a log softmax first. */
static fl_var *fl__nn_class_loss_run(const fl__nn_class_loss *l, fl_var *x, fl_tensor *target,
                                     bool logits) {
    if (!fl__nn_given(x, l->who, "the input") || !fl__nn_given(target, l->who, "the target") ||
        !fl__nn_loss_shapes_ok(l, fv_value(x), target))
        return fl_raise();
    fl_scope s = fl_scope_begin();
    fl_var *each =
        logits ? fl__nn_logit_losses(l, x, target) : fl__nn_class_losses(l, x, target);
    if (l->reduction != FL_MEAN) return fv_scope_return(&s, fl__nn_reduce(each, l->reduction));
    fl_tensor *n = fl_sum(fl_ne(target, fl_int(l->ignore)), FL_ALL_AXES);
    n = n ? fl_cast(n, fv_value(x)->dtype) : NULL;
    return fv_scope_return(&s, fv_div(fv_sum(each, FL_ALL_AXES), fv_const(n)));
}

FL_API fl_var *fl_nn_nll_opt(fl_var *logp, fl_tensor *target, fl_nn_nll_opts o) {
    const fl__nn_class_loss l = {"fl_nn_nll", o.reduction, fl_option_int(o.ignore_index, -100), 0};
    return fl__nn_class_loss_run(&l, logp, target, false);
}

FL_API fl_var *fl_nn_cross_entropy_opt(fl_var *logits, fl_tensor *target,
                                       fl_nn_cross_entropy_opts o) {
    const fl__nn_class_loss l = {"fl_nn_cross_entropy", o.reduction,
                                 fl_option_int(o.ignore_index, -100), o.label_smoothing};
    if (!(o.label_smoothing >= 0 && o.label_smoothing <= 1)) {
        fl_fail("fl_nn_cross_entropy: label_smoothing is %g, must be in [0, 1]", o.label_smoothing);
        return fl_raise();
    }
    return fl__nn_class_loss_run(&l, logits, target, true);
}

FL_API fl_var *fl_nn_mse_opt(fl_var *x, fl_var *y, fl_nn_mse_opts o) {
    if (!fl__nn_given(x, "fl_nn_mse", "the first operand") ||
        !fl__nn_given(y, "fl_nn_mse", "the second operand"))
        return fl_raise();
    const fl_shape a = fl_shape_of(fv_value(x)), b = fl_shape_of(fv_value(y));
    bool same = a.ndim == b.ndim;
    for (int i = 0; same && i < a.ndim; i++) same = a.dim[i] == b.dim[i];
    if (!same) {
        char first[FL__NN_SHAPE], second[FL__NN_SHAPE];
        fl_fail("fl_nn_mse: shapes %s and %s", fl__nn_shape(x, first), fl__nn_shape(y, second));
        return fl_raise();
    }
    return fv_mse_loss(x, y, o.reduction);
}

/* saving */

FL_API void fl_nn_state_free(fl_nn_state *s) {
    if (!s) return;
    for (int64_t i = 0; i < s->n; i++) {
        fl__free(s->item[i].name);
        fl_drop(s->item[i].tensor);
        fl_drop(s->item[i].loaded_);
    }
    fl__free(s->item);
    *s = (fl_nn_state){0};
}

static bool fl__nn_state_push(fl_nn_state *s, const char *prefix, const char *name, fl_tensor *t,
                              void *host) {
    const size_t size = strlen(prefix) + strlen(name) + 1;
    if (!fl__grow(&s->item, &s->cap_, s->n + 1, sizeof *s->item)) return false;
    char *full = fl__alloc(size);
    if (!full) return false;
    snprintf(full, size, "%s%s", prefix, name);
    s->item[s->n++] = (fl_nn_item){full, fl_keep(t), host, NULL};
    return true;
}

FL_API bool fl_nn_state_add(fl_nn_state *s, const char *prefix, const char *name, fl_tensor *t) {
    return fl__nn_given(s, "fl_nn_state_add", "the state") &&
           fl__nn_given(t, "fl_nn_state_add", "the tensor") &&
           fl__nn_state_push(s, prefix, name, t, NULL);
}

FL_API bool fl_nn_state_add_host(fl_nn_state *s, const char *prefix, const char *name, void *host,
                                 fl_shape shape, fl_dtype dtype) {
    if (!fl__nn_given(s, "fl_nn_state_add_host", "the state") ||
        !fl__nn_given(host, "fl_nn_state_add_host", "the memory"))
        return false;
    fl_quiet(+1);
    fl_scope scope = fl_scope_begin();
    fl_tensor *t = fl_from_host(host, shape, dtype);
    const bool ok = t && fl__nn_state_push(s, prefix, name, t, host);
    fl_scope_end(&scope);
    fl_quiet(-1);
    return ok;
}

typedef struct fl__nn_collector {
    fl_nn_state *state;
    const char *prefix;
} fl__nn_collector;

static bool fl__nn_collect_value(const char *path, fl_var *param, fl_tensor *buffer, void *user) {
    const fl__nn_collector *c = user;
    return fl__nn_state_push(c->state, c->prefix, path, param ? fv_value(param) : buffer, NULL);
}

/* A module's parameters, buffers, and its type's plain bytes. */
static bool fl__nn_collect(fl_nn_module *m, const char *prefix, void *user) {
    const fl__nn_collector *c = user;
    fl__nn_visitor v = {fl__nn_collect_value, user};
    if (!fl__nn_visit(m, prefix, &v)) return false;
    size_t bytes = 0;
    void *host = m->type->state ? m->type->state(m, &bytes) : NULL;
    if (!host) return true;
    char path[FL_NN_PATH];
    snprintf(path, sizeof path, "%s%s", prefix, "_extra_state");
    return fl_nn_state_add_host(c->state, c->prefix, path, host, FL_SHAPE((int64_t)bytes), FL_U8);
}

FL_API bool fl_nn_state_add_module(fl_nn_state *s, const char *prefix, fl_nn_module *m) {
    char path[FL_NN_PATH] = "";
    fl__nn_collector c = {s, prefix};
    return fl__nn_given(s, "fl_nn_state_add_module", "the state") &&
           fl__nn_given(m, "fl_nn_state_add_module", "the module") &&
           fl__nn_each(m, path, 0, fl__nn_collect, &c);
}

FL_API bool fl_nn_state_save(const fl_nn_state *s, const char *path, const fl_data_pair *meta,
                             int n_meta) {
    size_t bytes = 0;
    if (!fl__nn_given(s, "fl_nn_state_save", "the state")) return false;
    if (!fl__mul_size((size_t)s->n, sizeof(fl_data_named), &bytes))
        return fl_fail("fl_nn_state_save: too many tensors");
    fl_data_named *named = fl__alloc(bytes ? bytes : 1);
    if (!named) return false;
    for (int64_t i = 0; i < s->n; i++)
        named[i] = (fl_data_named){s->item[i].name, s->item[i].tensor};
    fl_quiet(+1);
    const bool ok = fl_data_save_safetensors(path, named, (int)s->n, meta, n_meta);
    fl_quiet(-1);
    fl__free(named);
    return ok;
}

/* A list of names, cut after the eighth. */
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

/* Every item is in the file, and every name of the file below prefix is an item. */
static bool fl__nn_names_match(const fl_nn_state *s, const fl_data_file *f, const char *what,
                               const char *prefix) {
    fl__nn_names missing = {"", 0}, unexpected = {"", 0};
    for (int64_t i = 0; i < s->n; i++)
        if (fl_data_find(f, s->item[i].name) < 0) fl__nn_names_add(&missing, s->item[i].name);
    for (int64_t i = 0; i < fl_data_count(f); i++) {
        const char *name = fl_data_name(f, i);
        if (!strncmp(name, prefix, strlen(prefix)) && !fl__nn_state_has(s, name))
            fl__nn_names_add(&unexpected, name);
    }
    if (!missing.n && !unexpected.n) return true;
    return fl_fail("%s: %d names missing%s%s; %d unexpected%s%s", what, missing.n,
                   missing.n ? ": " : "", missing.text, unexpected.n, unexpected.n ? ": " : "",
                   unexpected.text);
}

/* The tensor at index at of the file has the item's shape and dtype. */
static bool fl__nn_item_fits(const fl_nn_item *item, const fl_data_file *f, int64_t at,
                             const char *what) {
    const fl_shape have = fl_data_shape(f, at), want = fl_shape_of(item->tensor);
    const fl_dtype dtype = fl_data_dtype(f, at);
    bool ok = dtype == item->tensor->dtype && have.ndim == want.ndim;
    for (int i = 0; ok && i < have.ndim; i++) ok = have.dim[i] == want.dim[i];
    if (ok) return true;
    char a[FL__NN_SHAPE], b[FL__NN_SHAPE];
    return fl_fail("%s: '%s' is %s %s, the file has %s %s", what, item->name,
                   fl_dtype_name(item->tensor->dtype), fl_shape_text(want, a, sizeof a),
                   fl_dtype_name(dtype), fl_shape_text(have, b, sizeof b));
}

static bool fl__nn_read_item(fl_nn_item *item, fl_data_file *f) {
    fl_drop(item->loaded_);
    item->loaded_ = NULL;
    if (fl_data_find(f, item->name) < 0) return true;
    fl_scope scope = fl_scope_begin();
    item->loaded_ = fl_keep(fl_data_read(f, item->name));
    fl_scope_end(&scope);
    return item->loaded_ != NULL;
}

FL_API bool fl_nn_state_read(fl_nn_state *s, fl_data_file *f, const char *what, const char *prefix,
                             bool partial) {
    if (!fl__nn_given(s, "fl_nn_state_read", "the state") ||
        !fl__nn_given(f, "fl_nn_state_read", "the file"))
        return false;
    if (!partial && !fl__nn_names_match(s, f, what, prefix ? prefix : "")) return false;
    for (int64_t i = 0; i < s->n; i++) {
        const int64_t at = fl_data_find(f, s->item[i].name);
        if (at >= 0 && !fl__nn_item_fits(&s->item[i], f, at, what)) return false;
    }
    fl_quiet(+1);
    bool ok = true;
    for (int64_t i = 0; ok && i < s->n; i++) ok = fl__nn_read_item(&s->item[i], f);
    fl_quiet(-1);
    return ok;
}

static bool fl__nn_commit_item(const fl_nn_item *item) {
    if (!item->loaded_) return true;
    if (!item->host) return fl_assign(item->tensor, item->loaded_) != NULL;
    const size_t bytes = (size_t)fl_numel(item->loaded_) * fl_dtype_size(item->loaded_->dtype);
    return fl_to_host(item->loaded_, item->host, bytes);
}

FL_API bool fl_nn_state_commit(fl_nn_state *s) {
    if (!fl__nn_given(s, "fl_nn_state_commit", "the state")) return false;
    fl_quiet(+1);
    fl_scope scope = fl_scope_begin();
    bool ok = true;
    for (int64_t i = 0; ok && i < s->n; i++) ok = fl__nn_commit_item(&s->item[i]);
    fl_scope_end(&scope);
    fl_quiet(-1);
    return ok;
}

FL_API bool fl_nn_save(fl_nn_module *m, const char *path) {
    const fl_data_pair format = {"format",
                                 "pt"}; /* without it Hugging Face's loader refuses the file */
    fl_nn_state s = {0};
    if (!fl__nn_given(m, "fl_nn_save", "the module") || !fl__nn_given(path, "fl_nn_save", "the path"))
        return false;
    const bool ok = fl_nn_state_add_module(&s, "", m) && fl_nn_state_save(&s, path, &format, 1);
    fl_nn_state_free(&s);
    return ok;
}

FL_API bool fl_nn_load_opt(fl_nn_module *m, const char *path, fl_nn_load_opts o) {
    const char *prefix = o.prefix ? o.prefix : "";
    char what[FL_NN_PATH];
    fl_nn_state s = {0};
    if (!fl__nn_given(m, "fl_nn_load", "the module") || !fl__nn_given(path, "fl_nn_load", "the path"))
        return false;
    snprintf(what, sizeof what, "fl_nn_load: %s", path);
    bool ok = fl_nn_state_add_module(&s, prefix, m);
    fl_data_file *f = ok ? fl_data_open_safetensors(path) : NULL;
    ok = f && fl_nn_state_read(&s, f, what, prefix, o.partial) && fl_nn_state_commit(&s);
    fl_data_close(f);
    fl_nn_state_free(&s);
    return ok;
}

#endif
#endif

/* MIT licence: see LICENSE. */
