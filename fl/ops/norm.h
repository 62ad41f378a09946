/* fl/ops/norm.h - normalisation: of layers, batches, groups, channels, vectors; and what compares by it

   layer norm   y = (x - mean) rstd w + b,  rstd = 1 / sqrt(var + eps), over the last dims of x;
                rms: mean = 0 and var = mean(x^2)
   batch norm   y = max((x - mean) rstd w + b + add, 0 with relu), per channel over all other axes

   Records (fl_norm_args, fl_batch_norm_args). Means and variances are biased. x, y, add and their
   gradients may be halves: all else, weights and statistics, is then f32, and a slot that takes no
   narrow operands sees one dtype, in which it computes. [out] may be absent.
     layer_norm       x, w, b -> y, [mean], rstd: w and b have the last args.dims dims of x, or are
                      numbers; mean (absent with rms) and rstd have x's shape with those dims 1
     layer_norm_grad  x, w, mean (a number with rms), rstd, dy -> [dx], [dw], [db]
     add_layer_norm   (fl_add_norm_args) x, w, b, add -> y, [mean], rstd, sum: the norm of sum = add +
                      dropout(x), all of x's shape
     batch_norm       x [n, c, ...], w, b, add -> y, mean, var: w and b are [c, 1, ...] or numbers,
                      add is like x or a number, mean and var are [1, c, 1, ...];
                      the same, mean, var -> y
     batch_norm_grad  x, w, mean, var, y (a number without relu), dy -> [dx], [dw], [db], [dadd]
     group_norm, group_norm_grad: the same with args.groups; mean and var are [n, groups, 1, ...], of one dim
                      more than x */
#ifndef FL_T
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_NORM_H
#define FL_OPS_NORM_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_norm_args {
    int dims; /* the last ones, at least 1 */
    double eps;
    bool rms; /* 1 / sqrt(mean(x^2) + eps), and nothing is subtracted */
} fl_norm_args;
typedef struct fl_add_norm_args {
    fl_norm_args norm;
    double p; /* of fl_dropout_args, 0: none */
    fl_rng rng;
} fl_add_norm_args;
typedef struct fl_batch_norm_args {
    double eps;
    bool relu;
    int64_t groups; /* > 0: statistics of groups of channels of each image, not of channels of the batch */
} fl_batch_norm_args;

/* (x - mean) / sqrt(var + eps) * weight + bias, mean and biased variance over the last `dims` dims,
   the shape of weight and bias (either may be NULL). rms: x / sqrt(mean(x^2) + eps) * weight.
   Floats, of integers f32; halves are computed in f32. */
FL_API fl_tensor *fl_layer_norm(fl_tensor *x, int dims, fl_tensor *weight, fl_tensor *bias,
                                double eps);
FL_API fl_var *fv_layer_norm(fl_var *x, int dims, fl_var *weight, fl_var *bias, double eps);
FL_API fl_tensor *fl_rms_norm(fl_tensor *x, int dims, fl_tensor *weight, double eps);
FL_API fl_var *fv_rms_norm(fl_var *x, int dims, fl_var *weight, double eps);
/* The norm of *sum = add + dropout(x), as a transformer's branch ends: where the backend has it, and x and
   add are alike, in one pass forward, with the same numbers. p 0: no dropout. */
FL_API fl_tensor *fl_add_layer_norm(fl_tensor *x, fl_tensor *add, fl_tensor *weight, fl_tensor *bias,
                                    fl_norm_args a, double p, fl_rng *rng, fl_tensor **sum);
FL_API fl_var *fv_add_layer_norm(fl_var *x, fl_var *add, fl_var *weight, fl_var *bias, fl_norm_args a,
                                 double p, fl_rng *rng, fl_var **sum);
/* The same over groups of channels of x [n, c, ...], over single channels; weight, bias: [c] or
   NULL. */
FL_API fl_tensor *fl_group_norm(fl_tensor *x, int64_t groups, fl_tensor *weight, fl_tensor *bias,
                                double eps);
FL_API fl_var *fv_group_norm(fl_var *x, int64_t groups, fl_var *weight, fl_var *bias, double eps);
FL_API fl_tensor *fl_instance_norm(fl_tensor *x, fl_tensor *weight, fl_tensor *bias, double eps);
FL_API fl_var *fv_instance_norm(fl_var *x, fl_var *weight, fl_var *bias, double eps);
typedef struct fl_batch_norm_opts {
    fl_named _positional;
    fl_tensor *mean, *var; /* [c], running statistics; without train they are wanted */
    bool train;            /* statistics of the batch, at least 2 values; updates mean and var */
    double momentum;       /* 0 -> 0.1; mean = (1 - momentum) mean + momentum batch, var unbiased */
    double eps;            /* 0 -> 1e-5 */
    bool relu;             /* the result, at least 0 */
    /* With train: statistics of a batch of which x is a part. Adds up sums, f64 [2 c + 1], over all parts, in
       place, once forward and once backward; the last one is the number of values per channel. False after
       fl_fail. No second derivative. */
    bool (*reduce)(fl_tensor *sums, void *user);
    void *reduce_user;
    char _end;
} fl_batch_norm_opts;
/* The same per channel of x [n, c, ...] over all else, or with running statistics. */
#define fl_batch_norm(...) FL__BATCH_NORM(fl_, __VA_ARGS__, ._end = 0)
#define fv_batch_norm(...) FL__BATCH_NORM(fv_, __VA_ARGS__, ._end = 0)
#define FL__BATCH_NORM(p, x, weight, bias, ...) \
    p##batch_norm_opt(x, weight, bias, (fl_batch_norm_opts){__VA_ARGS__})
FL_API fl_tensor *fl_batch_norm_opt(fl_tensor *x, fl_tensor *weight, fl_tensor *bias,
                                    fl_batch_norm_opts o);
FL_API fl_var *fv_batch_norm_opt(fl_var *x, fl_var *weight, fl_var *bias, fl_batch_norm_opts o);
/* The same plus y, which has x's shape, before the relu: the end of a residual block. */
#define fl_batch_norm_add(...) FL__BATCH_NORM_ADD(fl_, __VA_ARGS__, ._end = 0)
#define fv_batch_norm_add(...) FL__BATCH_NORM_ADD(fv_, __VA_ARGS__, ._end = 0)
#define FL__BATCH_NORM_ADD(p, x, weight, bias, y, ...) \
    p##batch_norm_add_opt(x, weight, bias, y, (fl_batch_norm_opts){__VA_ARGS__})
FL_API fl_tensor *fl_batch_norm_add_opt(fl_tensor *x, fl_tensor *weight, fl_tensor *bias,
                                        fl_tensor *y, fl_batch_norm_opts o);
FL_API fl_var *fv_batch_norm_add_opt(fl_var *x, fl_var *weight, fl_var *bias, fl_var *y,
                                     fl_batch_norm_opts o);
/* x / (k + alpha * mean of x^2 over `size` neighbouring channels)^beta, zeros outside; x
   [n, c, ...] */
FL_API fl_tensor *fl_local_response_norm(fl_tensor *x, int64_t size, double alpha, double beta,
                                         double k);
FL_API fl_var *fv_local_response_norm(fl_var *x, int64_t size, double alpha, double beta, double k);
/* x / max(|x|_p, eps) along axis;  v g / |v|_2 over all axes but one, to which g broadcasts */
FL_API fl_tensor *fl_normalize(fl_tensor *x, double p, int axis, double eps);
FL_API fl_var *fv_normalize(fl_var *x, double p, int axis, double eps);
FL_API fl_tensor *fl_weight_norm(fl_tensor *v, fl_tensor *g, int axis);
FL_API fl_var *fv_weight_norm(fl_var *v, fl_var *g, int axis);
/* a b / (max(|a|, eps) max(|b|, eps)) along axis;  |a - b + eps|_p along the last axis */
FL_API fl_tensor *fl_cosine_similarity(fl_tensor *a, fl_tensor *b, int axis, double eps);
FL_API fl_var *fv_cosine_similarity(fl_var *a, fl_var *b, int axis, double eps);
FL_API fl_tensor *fl_pairwise_distance(fl_tensor *a, fl_tensor *b, double p, double eps);
FL_API fl_var *fv_pairwise_distance(fl_var *a, fl_var *b, double p, double eps);

FL_DATA fl_op fl_op_layer_norm, fl_op_layer_norm_grad, fl_op_batch_norm, fl_op_batch_norm_grad;
FL_DATA fl_op fl_op_group_norm, fl_op_group_norm_grad, fl_op_add_layer_norm;
FL_PRIVATE void fl__register_norm(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_NORM_H */

#if defined(FL_IMPL_ONLY_OPS_NORM) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_NORM_IMPL
#define FL_OPS_NORM_IMPL
#include "../../fl_autograd.h"
#include "copy.h"
#include "elementwise.h"
#include "random.h"
#include "reduce.h"
#include "view.h"
#define FL_TEXT "norm.h"
#include "expand.h"

FL_DATA_DEFINED fl_op fl_op_layer_norm, fl_op_layer_norm_grad, fl_op_batch_norm, fl_op_batch_norm_grad;
FL_DATA_DEFINED fl_op fl_op_group_norm, fl_op_group_norm_grad, fl_op_add_layer_norm;

FL_PRIVATE void fl__register_norm(void) {
    static const fl_op_info layer_norm = {.name = "layer_norm",
                                          .args_size = sizeof(fl_norm_args),
                                          .contains = "sum add sub mul div sqrt",
                                          .compose = fl__compose_layer_norm,
                                          .gradient = fv__layer_norm_back},
                            layer_norm_grad = {.name = "layer_norm_grad",
                                               .args_size = sizeof(fl_norm_args),
                                               .contains = "sum add sub mul div",
                                               .compose = fl__compose_layer_norm_grad},
                            add_layer_norm = {.name = "add_layer_norm",
                                              .args_size = sizeof(fl_add_norm_args),
                                              .contains = "dropout layer_norm random le where "
                                                          "sum add sub mul div sqrt",
                                              .compose = fl__compose_add_layer_norm,
                                              .rng_end = sizeof(fl_add_norm_args)},
                            batch_norm = {.name = "batch_norm",
                                          .args_size = sizeof(fl_batch_norm_args),
                                          .contains = "sum add sub mul div sqrt maximum",
                                          .compose = fl__compose_batch_norm,
                                          .gradient = fv__batch_norm_back},
                            batch_norm_grad = {.name = "batch_norm_grad",
                                               .args_size = sizeof(fl_batch_norm_args),
                                               .contains = "sum add sub mul div sqrt where le",
                                               .compose = fl__compose_batch_norm_grad};
    static fl_op_info group_norm, group_norm_grad;
    group_norm = batch_norm, group_norm_grad = batch_norm_grad;
    group_norm.name = "group_norm";
    group_norm_grad.name = "group_norm_grad";
    fl_op_layer_norm = fl_op_register(&layer_norm);
    fl_op_layer_norm_grad = fl_op_register(&layer_norm_grad);
    fl_op_add_layer_norm = fl_op_register(&add_layer_norm);
    fl_op_batch_norm = fl_op_register(&batch_norm);
    fl_op_batch_norm_grad = fl_op_register(&batch_norm_grad);
    fl_op_group_norm = fl_op_register(&group_norm);
    fl_op_group_norm_grad = fl_op_register(&group_norm_grad);
}

#endif /* FL_OPS_NORM_IMPL */
#endif
#else /* the text: see expand.h */

/* ---- shape rules ---- */

#ifdef FL_ON_TENSORS
/* The axes of t from `first` on. */
static fl_axes fl__axes_from(const fl_tensor *t, int first) {
    fl_axes a = {.n = t->ndim - first, .keepdim = true};
    for (int i = 0; i < a.n; i++) a.axis[i] = first + i;
    return a;
}

/* All axes but the channels'. */
static fl_axes fl__axes_but_channels(const fl_tensor *x) {
    fl_axes a = fl__axes_from(x, 1);
    a.axis[0] = 0;
    return a;
}

/* w is NULL, or has the last dims of x, from `first` on. */
static bool fl__ends_as(const char *fn, const fl_tensor *x, int first, const fl_tensor *w) {
    bool ok = !w || w->ndim == x->ndim - first;
    for (int i = 0; ok && w && i < w->ndim; i++) ok = w->shape[i] == x->shape[first + i];
    return ok || fl_refuse("%s: the last dims of %s are not %s", fn, FL_SHAPE_TEXT(x), FL_SHAPE_TEXT(w));
}

/* x has channels [n, c, ...], and w is NULL or [c]. */
static bool fl__per_channel(const char *fn, const fl_tensor *x, const fl_tensor *w) {
    bool ok = x->ndim >= 2 && (!w || (w->ndim == 1 && w->shape[0] == x->shape[1]));
    return ok || fl_refuse("%s: %s does not have the channels of %s", fn, FL_SHAPE_TEXT(x),
                           w ? FL_SHAPE_TEXT(w) : "[n, c, ...]");
}

/* ---- layer norm ---- */

static bool fl__compose_layer_norm(const fl_call *c, fl_tensor **y) {
    const fl_norm_args *a = c->args;
    fl_tensor *x = c->in[0];
    fl_axes inner = fl__axes_from(x, x->ndim - a->dims);
    y[1] = a->rms ? NULL : fl_mean(x, inner);
    fl_tensor *centred = a->rms ? x : fl_sub(x, y[1]);
    y[2] = fl_rsqrt(fl_add(fl_mean(fl_square(centred), inner), fl_num(a->eps)));
    y[0] = fl_add(fl_mul(fl_mul(centred, y[2]), c->in[1]), c->in[2]);
    return y[0] != NULL;
}

/* y, mean and rstd of x, w, b; with `adds` of x, w, b, add, and their sum. */
static bool fl__run_layer_norm(fl_tensor *const *in, fl_norm_args a, const fl_add_norm_args *adds,
                               fl_tensor **y) {
    fl_tensor *x = in[0];
    fl_shape rows = fl_shape_of(x);
    for (int i = x->ndim - a.dims; i < x->ndim; i++) rows.dim[i] = 1;
    y[0] = fl_out_like(x, x->dtype);
    y[1] = a.rms ? NULL : fl_out_on(x->family, rows, fl_dtype_wide(x->dtype));
    y[2] = fl_out_on(x->family, rows, fl_dtype_wide(x->dtype));
    fl_call c = {.op = fl_op_layer_norm, .n_out = 3, .n_in = 3, .out = {y[0], y[1], y[2]},
                 .in = {x, in[1], in[2]}, .args = &a};
    if (adds) {
        c.op = fl_op_add_layer_norm, c.n_out = 4, c.n_in = 4, c.args = adds;
        c.in[3] = in[3], c.out[3] = y[3] = fl_out_like(x, x->dtype);
    }
    if (!y[0] || (!y[1] && !a.rms) || !y[2] || (adds && !y[3])) return fl_raise();
    return fl_call_run(&c) || fl_raise();
}

static bool fl__compose_add_layer_norm(const fl_call *c, fl_tensor **y) {
    const fl_add_norm_args *a = c->args;
    y[3] = fl_add(c->in[3], a->p > 0 ? fl_dropout_at(c->in[0], a->p, a->rng) : c->in[0]);
    return y[3] && fl__run_layer_norm((fl_tensor *[]){y[3], c->in[1], c->in[2]}, a->norm, NULL, y);
}

/* Is there a record for them, if the weights do not make x wider? */
static bool fl__adds_norm(const fl_tensor *x, const fl_tensor *add, double p) {
    return fl_backend_has(x->family, fl_op_add_layer_norm) && !(fl_flags() & FL_AUTOCAST_FLAGS) &&
           p >= 0 && p <= 1 && fl_dtype_is_float(x->dtype) && x->dtype == add->dtype &&
           !x->weak && !add->weak && x->family == add->family && fl_same_shape(x, add);
}
#endif

/* What the record takes: x as a float, a half or what it promotes to with w and b; these in the
   dtype that computes, and numbers where they are NULL. */
static bool FL_W(_norm_operands)(const char *fn, FL_T **in, int dims) {
    FL_T *x = in[0], *w = in[1], *b = in[2];
    if (dims < 1 || dims > FL_VALUE(x)->ndim)
        return fl_refuse("%s: the last %d dims of shape %s", fn, dims, FL_SHAPE_TEXT(FL_VALUE(x)));
    const int first = FL_VALUE(x)->ndim - dims;
    if (!fl__ends_as(fn, FL_VALUE(x), first, w ? FL_VALUE(w) : NULL) ||
        !fl__ends_as(fn, FL_VALUE(x), first, b ? FL_VALUE(b) : NULL) || !(x = FL_W(_floating)(x)))
        return false;
    fl_tensor *t = FL_VALUE(x), *all[] = {t, w ? FL_VALUE(w) : t, b ? FL_VALUE(b) : t};
    fl_dtype wide = fl_dtype_wide(fl_is_narrow(t) ? t->dtype : fl_result_type(3, all));
    in[0] = fl_is_narrow(t) ? x : FL_W(cast)(x, wide);
    in[1] = w ? FL_W(cast)(w, wide) : CONST(1);
    in[2] = b ? FL_W(cast)(b, wide) : CONST(0);
    return in[0] && in[1] && in[2];
}

/* Gradients of (x - mean) rstd w + b, given that of the result: of x, w, b where they are wanted. mean,
   rstd: of the forward pass, or NULL: computed here, and differentiable. With n = (x - mean) rstd and
   g = dy w, and means over the normalised dims: dx = rstd (g - mean(g) - n mean(g n)); rms: without
   the first mean. */
static bool FL_W(_layer_norm_grads)(FL_T *const *in, FL_T *dy, fl_norm_args a, const bool *wanted,
                                    FL_T **d) {
    FL_T *x = FL_W(_widened)(in[0]), *w = in[1], *mean = in[2], *rstd = in[3];
    if (!x || !(dy = FL_W(_widened)(dy))) return false;
    int rows = FL_VALUE(x)->ndim - a.dims;
    fl_axes inner = fl__axes_from(FL_VALUE(x), rows), outer = {.n = rows};
    for (int i = 0; i < rows; i++) outer.axis[i] = i;
    FL_T *centred = a.rms ? x : SUB(x, mean ? mean : FL_W(mean)(x, inner));
    if (!rstd) rstd = FL_W(rsqrt)(ADD(FL_W(mean)(FL_W(square)(centred), inner), CONST(a.eps)));
    FL_T *n = MUL(centred, rstd), *g = MUL(dy, w);
    FL_T *rest = MUL(n, FL_W(mean)(MUL(g, n), inner));
    if (!a.rms) rest = ADD(rest, FL_W(mean)(g, inner));
    if (wanted[0]) d[0] = MUL(rstd, SUB(g, rest));
    if (wanted[1]) d[1] = rows ? FL_W(sum)(MUL(dy, n), outer) : MUL(dy, n);
    if (wanted[2]) d[2] = rows ? FL_W(sum)(dy, outer) : dy;
    return rest != NULL;
}

#ifdef FL_ON_TENSORS
static bool fl__compose_layer_norm_grad(const fl_call *c, fl_tensor **d) {
    const bool wanted[] = {c->out[0], c->out[1], c->out[2]};
    return fl__layer_norm_grads(c->in, c->in[4], *(const fl_norm_args *)c->args, wanted, d);
}
#else
/* in: x, w, mean, rstd */
static bool fv__run_layer_norm_grad(fl_tensor *const *in, fl_tensor *dy, fl_norm_args a,
                                    const bool *wanted, fl_var **d) {
    fl_tensor *x = in[0];
    fl_shape w = {a.dims, {0}};
    for (int i = 0; i < a.dims; i++) w.dim[i] = x->shape[x->ndim - a.dims + i];
    fl_call c = {.op = fl_op_layer_norm_grad, .n_out = 3, .n_in = 5,
                 .in = {x, in[1], in[2], in[3], dy}, .args = &a};
    for (int i = 0; i < 3; i++) {
        if (!wanted[i]) continue;
        c.out[i] = i ? fl_out_on(x->family, w, fl_dtype_wide(x->dtype)) : fl_out_like(x, x->dtype);
        if (!c.out[i]) return fl_raise();
    }
    if (!fl_call_run(&c)) return fl_raise();
    for (int i = 0; i < 3; i++) d[i] = fv_const(c.out[i]);
    return true;
}

static void fv__layer_norm_back(fl_node *n, fl_var *dy) {
    fl_norm_args a = *(const fl_norm_args *)fv_args(n);
    fl_var *in[4], *d[3] = {NULL};
    fl_tensor *t[4];
    const bool wanted[] = {fv_needs(n, 0), fv_needs(n, 1), fv_needs(n, 2)};
    for (int i = 0; i < 4; i++) t[i] = fv_value(in[i] = fv_saved(n, i));
    if (fl_grad_enabled()) {
        in[2] = in[3] = NULL;
        fv__layer_norm_grads(in, dy, a, wanted, d);
    } else {
        fv__run_layer_norm_grad(t, dy->value, a, wanted, d);
    }
    for (int i = 0; i < 3; i++)
        if (wanted[i]) fv_add_grad(n, i, d[i]);
}

static fl_tensor *fv__layer_norm_recompute(fl_node *n) {
    fl_tensor *y[3], *t[] = {fv_value(fv_saved(n, 0)), fv_value(fv_saved(n, 1)),
                             fv_value(fv_saved(n, 4))};
    if (!t[0] || !t[1] || !t[2]) return NULL;
    return fl__run_layer_norm(t, *(const fl_norm_args *)fv_args(n), NULL, y) ? y[0] : NULL;
}

/* Of the sum: to x by the mask, to add as it is. */
static void fv__add_layer_norm_back(fl_node *n, fl_var *dy) {
    const fl_add_norm_args *a = fv_args(n);
    const fl_dropout_args mask = {a->p, a->rng};
    fv_add_grad(n, 1, dy);
    if (a->p > 0 && fv_needs(n, 0))
        dy = fv_record_op(fl_op_dropout, fl_dropout_at(dy->value, a->p, a->rng), FV_IN(dy), FV_NONE, &mask);
    fv_add_grad(n, 0, dy);
}
#endif

/* y of y, mean and rstd, which were made of in: x, w, b */
static FL_T *FL_W(_layer_norm_made)(FL_T *const *in, fl_tensor *const *y, fl_norm_args a) {
#ifdef FL_ON_TENSORS
    (void)in, (void)a;
    return y[0];
#else
    fl_var *mean = a.rms ? fv_num(0) : fv_const(y[1]), *rstd = fv_const(y[2]);
    return fv_record_opt(y[0], &(fv_record_opts){.op = fl_op_layer_norm,
                                                 .recompute = fv__layer_norm_recompute,
                                                 .in = FV_IN(in[0], in[1], in[2]),
                                                 .saved = FV_SAVE(in[0], in[1], mean, rstd, in[2]),
                                                 .n_recompute_only = 1,
                                                 .args = &a});
#endif
}

static FL_T *FL_W(_layer_norm)(const char *fn, FL_T *x, FL_T *weight, FL_T *bias, fl_norm_args a) {
    fl_scope s = fl_scope_begin();
    FL_T *in[] = {x, weight, bias};
    fl_tensor *y[3];
    if (!FL_AUTOCAST(fl_op_layer_norm, in, 3) || !FL_W(_norm_operands)(fn, in, a.dims))
        return FL_GIVE(&s, NULL);
    fl_tensor *t[] = {FL_VALUE(in[0]), FL_VALUE(in[1]), FL_VALUE(in[2])};
    if (!fl__run_layer_norm(t, a, NULL, y)) return FL_GIVE(&s, NULL);
    return FL_GIVE(&s, FL_W(_layer_norm_made)(in, y, a));
}

FL_T *FL_W(layer_norm)(FL_T *x, int dims, FL_T *weight, FL_T *bias, double eps) {
    if (FL_ABSENT("layer_norm", x)) return NULL;
    fl_norm_args a = {.dims = dims, .eps = eps};
    return FL_W(_layer_norm)("fl_layer_norm", x, weight, bias, a);
}

FL_T *FL_W(rms_norm)(FL_T *x, int dims, FL_T *weight, double eps) {
    if (FL_ABSENT("rms_norm", x)) return NULL;
    fl_norm_args a = {.dims = dims, .eps = eps, .rms = true};
    return FL_W(_layer_norm)("fl_rms_norm", x, weight, NULL, a);
}

/* in: x, w, b, add, as the record takes them. The sum is a node of its own: y, which is made of it, can be
   computed again. */
static FL_T *FL_W(_add_layer_norm)(FL_T **in, fl_add_norm_args a, FL_T **sum) {
    fl_tensor *t[4], *y[4];
    for (int i = 0; i < 4; i++) t[i] = FL_VALUE(in[i]);
    if (!fl__run_layer_norm(t, a.norm, &a, y)) return NULL;
#ifdef FL_ON_TENSORS
    *sum = y[3];
#else
    *sum = fv_record_opt(y[3], &(fv_record_opts){.name = "add_layer_norm",
                                                 .back = fv__add_layer_norm_back,
                                                 .in = FV_IN(in[0], in[3]),
                                                 .args = &a,
                                                 .bytes = sizeof a});
#endif
    in[0] = *sum;
    return *sum ? FL_W(_layer_norm_made)(in, y, a.norm) : NULL;
}

FL_T *FL_W(add_layer_norm)(FL_T *x, FL_T *add, FL_T *weight, FL_T *bias, fl_norm_args a, double p,
                           fl_rng *rng, FL_T **sum) {
    if (FL_ABSENT("add_layer_norm", x) || FL_ABSENT("add_layer_norm", add)) return NULL;
    fl_scope s = fl_scope_begin();
    FL_T *in[] = {x, weight, bias, add}, *y = NULL, *all = NULL;
    fl_add_norm_args args = {a, p, {0, 0}};
    if (fl__adds_norm(FL_VALUE(x), FL_VALUE(add), p) &&
        FL_W(_norm_operands)("fl_add_layer_norm", in, a.dims) && in[0] == x) {
        if (p > 0) args.rng = fl_rng_take(rng, fl_numel(FL_VALUE(x)));
        y = FL_W(_add_layer_norm)(in, args, &all);
    } else if ((all = ADD(add, p != 0 ? FL_W(dropout)(x, p, rng) : x))) {
        y = FL_W(_layer_norm)("fl_add_layer_norm", all, weight, bias, a);
    }
    if (y && sum) *sum = FL_PROMOTE(&s, all);
    return FL_GIVE(&s, y);
}

/* weight and bias, NULL or [c], fit x; false after an error. */
static bool FL_W(_channels_fit)(const char *fn, FL_T *x, FL_T *weight, FL_T *bias) {
    return fl__per_channel(fn, FL_VALUE(x), weight ? FL_VALUE(weight) : NULL) &&
           fl__per_channel(fn, FL_VALUE(x), bias ? FL_VALUE(bias) : NULL);
}

/* w [c] as [c, 1, ...], which broadcasts with [n, c, ...] of ndim dims */
static FL_T *FL_W(_as_channels)(FL_T *w, int ndim) {
    if (!w) return NULL;
    fl_shape s = {ndim - 1, {FL_VALUE(w)->shape[0]}};
    for (int i = 1; i < s.ndim; i++) s.dim[i] = 1;
    return FL_W(reshape)(w, s);
}

/* ---- batch and group norm ---- */

#ifdef FL_ON_TENSORS
static fl_op fl__batch_norm_op(fl_batch_norm_args a) {
    return a.groups ? fl_op_group_norm : fl_op_batch_norm;
}

/* Of an image in its groups: what a mean is over, and what the gradient of a weight is summed over. */
static fl_axes fl__mean_axes(const fl_tensor *x, int64_t groups) {
    return groups ? fl__axes_from(x, 2) : fl__axes_but_channels(x);
}
static fl_axes fl__weight_axes(const fl_tensor *x, int64_t groups) {
    fl_axes a = groups ? fl__axes_from(x, 2) : fl__axes_but_channels(x);
    if (groups) a.axis[0] = 0;
    return a;
}
#endif

/* x [n, c, ...] as [n, groups, c / groups, ...], w [c, ...] likewise, whose channels are axis `at`; without
   groups, and numbers, as they are. NULL passes. */
static FL_T *FL_W(_in_groups)(FL_T *x, int at, int64_t groups) {
    if (!x || !groups || FL_VALUE(x)->weak) return x;
    const fl_tensor *t = FL_VALUE(x);
    fl_shape s = {t->ndim + 1, {0}};
    for (int i = 0; i < t->ndim; i++) s.dim[i + (i > at)] = t->shape[i];
    s.dim[at] = groups;
    s.dim[at + 1] = t->shape[at] / groups;
    return FL_W(reshape)(x, s);
}

#ifdef FL_ON_TENSORS
static bool fl__compose_batch_norm(const fl_call *c, fl_tensor **y) {
    const fl_batch_norm_args *a = c->args;
    fl_tensor *x = fl__in_groups(c->in[0], 1, a->groups), *w = fl__in_groups(c->in[1], 0, a->groups);
    fl_tensor *b = fl__in_groups(c->in[2], 0, a->groups);
    if (!x || !w || !b) return false;
    fl_axes axes = fl__mean_axes(x, a->groups);
    y[1] = c->n_in == 6 ? c->in[4] : fl_mean(x, axes);
    fl_tensor *centred = fl_sub(x, y[1]);
    y[2] = c->n_in == 6 ? c->in[5] : fl_mean(fl_square(centred), axes);
    fl_tensor *scale = fl_mul(fl_rsqrt(fl_add(y[2], fl_num(a->eps))), w);
    y[0] = fl_reshape(fl_add(fl_mul(centred, scale), b), fl_shape_of(c->in[0]));
    if (!c->in[3]->weak) y[0] = fl_add(y[0], c->in[3]);
    if (a->relu) y[0] = fl_relu(y[0]);
    return y[0] != NULL;
}

/* Where t's elements lie as x's do: t, or a copy that lies so. */
static fl_tensor *fl__lying_as(fl_tensor *t, const fl_tensor *x) {
    fl_tensor *out = fl_out_lay_as(fl_out_like(t, t->dtype), x);
    if (!out) return fl_raise();
    bool same = true;
    for (int i = 0; i < t->ndim; i++) same &= t->stride[i] == out->stride[i] || t->shape[i] == 1;
    return same ? t : fl_call_into(FL_OP_copy, out, t, NULL, NULL);
}

/* y, mean and var of x, w, b, add. All images lie as x, which has no gaps. given: mean and var,
   already known, or NULL. */
static bool fl__run_batch_norm(fl_tensor *const *in, fl_batch_norm_args a, fl_tensor *const *given,
                               fl_tensor **y) {
    fl_tensor *x = fl__lying_as(in[0], in[0]);
    fl_tensor *add = x && !in[3]->weak ? fl__lying_as(in[3], x) : in[3];
    if (!x || !add) return false;
    fl_shape stats = {x->ndim, {1, x->shape[1]}};
    if (a.groups) stats = (fl_shape){x->ndim + 1, {x->shape[0], a.groups}};
    for (int i = 2; i < stats.ndim; i++) stats.dim[i] = 1;
    fl_call c = {.op = fl__batch_norm_op(a), .n_out = given ? 1 : 3, .n_in = given ? 6 : 4,
                 .in = {x, in[1], in[2], add}, .args = &a};
    c.out[0] = y[0] = fl_out_lay_as(fl_out_like(x, x->dtype), x);
    const fl_dtype wide = fl_dtype_wide(x->dtype);
    bool ok = y[0] != NULL;
    for (int i = 0; i < 2; i++) {
        if (given) c.in[4 + i] = given[i];
        else ok &= (c.out[1 + i] = y[1 + i] = fl_out_on(x->family, stats, wide)) != NULL;
    }
    return (ok && fl_call_run(&c)) || fl_raise();
}

static bool fl__batch_norm_fits(const fl_tensor *x, const fl_batch_norm_opts *o) {
    const char *fn = "fl_batch_norm";
    if (!fl__per_channel(fn, x, o->mean) || !fl__per_channel(fn, x, o->var)) return false;
    if (!o->train && (!o->mean || !o->var))
        return fl_refuse("%s: running mean and variance are wanted out of training", fn);
    int64_t n = x->shape[0];
    for (int i = 2; i < x->ndim; i++) n *= x->shape[i];
    return !o->train || n > 1 || o->reduce ||
           fl_refuse("%s: input %s has %lld values per channel, batch statistics want 2", fn,
                     FL_SHAPE_TEXT(x), (long long)n);
}

/* a and b, [1, c, 1, ...], and a count, added up over all parts of the batch: a and b become means. */
static bool fl__joint_means(const fl_batch_norm_opts *o, fl_tensor **a, fl_tensor **b, double *count) {
    const fl_shape shape = fl_shape_of(*a);
    const int64_t c = fl_shape_numel(shape);
    const fl_dtype wide = (*a)->dtype;
    fl_tensor *parts[] = {fl_flatten(fl_cast(*a, FL_F64), 0, -1), fl_flatten(fl_cast(*b, FL_F64), 0, -1),
                          fl_new_full(fl_cast(*a, FL_F64), FL_SHAPE(1), *count)};
    fl_tensor *sums = fl_concat(parts, 3, 0);
    if (!sums || !o->reduce(sums, o->reduce_user)) return false;
    *count = fl_item(fl_select(sums, 0, 2 * c));
    if (!(*count > 1))
        return fl_fail("fl_batch_norm: %g values per channel in all, batch statistics want 2", *count);
    sums = fl_div(sums, fl_num(*count));
    *a = fl_cast(fl_reshape(fl_slice(sums, 0, 0, c, 1), shape), wide);
    *b = fl_cast(fl_reshape(fl_slice(sums, 0, c, 2 * c, 1), shape), wide);
    return *a && *b;
}

/* Mean and variance of a batch of which x is a part: the second moments are f64, and wide enough. */
static bool fl__joint_statistics(fl_tensor *x, const fl_batch_norm_opts *o, fl_tensor **stats,
                                 double *count) {
    fl_axes axes = fl__axes_but_channels(x);
    fl_tensor *wide = fl_cast(x, fl_dtype_wide(x->dtype)), *mean = fl_mean(wide, axes);
    fl_tensor *var = fl_cast(fl_mean(fl_square(fl_sub(wide, mean)), axes), FL_F64);
    if (!var) return false;
    mean = fl_cast(mean, FL_F64);
    *count = (double)(fl_numel(x) / x->shape[1]);
    fl_tensor *sum = fl_mul(mean, fl_num(*count));
    fl_tensor *square = fl_mul(fl_add(var, fl_square(mean)), fl_num(*count));
    if (!fl__joint_means(o, &sum, &square, count)) return false;
    stats[0] = fl_cast(sum, wide->dtype);
    stats[1] = fl_cast(fl_maximum(fl_sub(square, fl_square(sum)), fl_num(0)), wide->dtype);
    return stats[0] && stats[1];
}

/* (1 - momentum) running + momentum batch, of running's shape and dtype */
static fl_tensor *fl__blended(fl_tensor *running, fl_tensor *batch, double momentum) {
    fl_tensor *flat = fl_reshape(batch, fl_shape_of(running));
    fl_tensor *y = ADD(MUL(running, CONST(1 - momentum)), MUL(flat, CONST(momentum)));
    return y ? fl_cast(y, running->dtype) : NULL;
}

/* Both new values first, then both are written. n: values per channel */
static bool fl__blend_statistics(const fl_batch_norm_opts *o, fl_tensor *mean, fl_tensor *var,
                                 double n) {
    double momentum = fl_option(o->momentum, 0.1);
    fl_tensor *m = NULL, *v = NULL;
    if (o->mean && !(m = fl__blended(o->mean, mean, momentum))) return false;
    const double unbiased = n / (n - 1);
    if (o->var && !(v = fl__blended(o->var, MUL(var, CONST(unbiased)), momentum))) return false;
    return (!m || fl_assign(o->mean, m)) && (!v || fl_assign(o->var, v));
}
#endif

/* x, w, b, add become what the record takes: x and add of one dtype, a half if both are that one, all
   else of the dtype that computes, and numbers for NULLs. */
static bool FL_W(_batch_operands)(FL_T **in) {
    const fl_tensor *x = FL_VALUE(in[0]);
    fl_tensor *all[4];
    int ndim = x->ndim, n = 0;
    for (int i = 0; i < 4; i++)
        if (in[i]) all[n++] = FL_VALUE(in[i]);
    fl_dtype wide = fl_dtype_wide(fl_result_type(n, all));
    if (!fl_dtype_is_float(wide)) wide = FL_F32;
    bool half = fl_dtype_is_float(x->dtype) && fl_is_narrow(x);
    half = half && (!in[3] || FL_VALUE(in[3])->dtype == x->dtype);
    if (half) wide = fl_dtype_wide(x->dtype);
    const fl_dtype image = half ? x->dtype : wide;
    for (int i = 0; i < 4; i++) {
        if (!in[i]) in[i] = CONST(i == 1);
        else in[i] = i % 3 ? FL_W(_as_channels)(FL_W(cast)(in[i], wide), ndim) : FL_W(cast)(in[i], image);
        if (!in[i]) return false;
    }
    return true;
}

/* Gradients of relu((x - mean) / sqrt(var + eps) w + b + add), given that of the result: of x, w, b,
   add where they are wanted. in: x, w, mean, var, y; mean and var of the forward pass, or NULL:
   computed here, and differentiable. With n the normalised x, g = dy where y > 0, and means per
   channel or group: dx = (g w - mean(g w) - n mean(g w n)) / sqrt(var + eps). */
static bool FL_W(_batch_norm_grads)(FL_T *const *in, FL_T *dy, fl_batch_norm_args a,
                                    const bool *wanted, FL_T **d) {
    const int64_t groups = a.groups;
    FL_T *x = FL_W(_in_groups)(FL_W(_widened)(in[0]), 1, groups), *w = FL_W(_in_groups)(in[1], 0, groups);
    FL_T *mean = in[2], *var = in[3], *g = FL_W(_widened)(dy);
    if (!x || !w || !g) return false;
    const fl_shape image = fl_shape_of(FL_VALUE(in[0]));
    fl_axes axes = fl__mean_axes(FL_VALUE(x), groups), all = fl__weight_axes(FL_VALUE(x), groups);
    fl_shape channels = {image.ndim - 1, {image.dim[1]}};
    for (int i = 1; i < channels.ndim; i++) channels.dim[i] = 1;
    if (a.relu) g = SELECT(LE(in[4], CONST(0)), CONST(0), g);
    if (wanted[3]) d[3] = g;
    if (!(g = FL_W(_in_groups)(g, 1, groups))) return false;
    FL_T *centred = SUB(x, mean ? mean : FL_W(mean)(x, axes));
    if (!var) var = FL_W(mean)(FL_W(square)(centred), axes);
    FL_T *rstd = FL_W(rsqrt)(ADD(var, CONST(a.eps))), *n = MUL(centred, rstd), *gn = MUL(g, n);
    if (wanted[1]) d[1] = FL_W(reshape)(FL_W(sum)(gn, all), channels);
    if (wanted[2]) d[2] = FL_W(reshape)(FL_W(sum)(g, all), channels);
    if (!wanted[0]) return gn != NULL;
    if (groups) g = MUL(g, w), gn = MUL(g, n); /* channels of one mean differ in their weights */
    FL_T *scale = groups ? rstd : MUL(rstd, w);
    FL_T *rest = ADD(MUL(n, FL_W(mean)(gn, axes)), FL_W(mean)(g, axes));
    return (d[0] = FL_W(reshape)(MUL(scale, SUB(g, rest)), image)) != NULL;
}

#ifdef FL_ON_TENSORS
static bool fl__compose_batch_norm_grad(const fl_call *c, fl_tensor **d) {
    const bool wanted[] = {c->out[0], c->out[1], c->out[2], c->out[3]};
    return fl__batch_norm_grads(c->in, c->in[5], *(const fl_batch_norm_args *)c->args, wanted, d);
}
#else
/* in: x, w, mean, var, y */
static bool fv__run_batch_norm_grad(fl_tensor *const *in, fl_tensor *dy, fl_batch_norm_args a,
                                    const bool *wanted, fl_var **d) {
    fl_tensor *x = fl__lying_as(in[0], in[0]);
    if (!x || !(dy = fl__lying_as(dy, x))) return false;
    fl_shape channels = {x->ndim - 1, {x->shape[1]}};
    for (int i = 1; i < channels.ndim; i++) channels.dim[i] = 1;
    fl_call c = {.op = a.groups ? fl_op_group_norm_grad : fl_op_batch_norm_grad, .n_out = 4, .n_in = 6,
                 .in = {x, in[1], in[2], in[3], in[4], dy}, .args = &a};
    for (int i = 0; i < 4; i++) {
        if (!wanted[i]) continue;
        c.out[i] = i % 3 ? fl_out_on(x->family, channels, fl_dtype_wide(x->dtype))
                         : fl_out_lay_as(fl_out_like(x, x->dtype), x);
        if (!c.out[i]) return fl_raise();
    }
    if (!fl_call_run(&c)) return fl_raise();
    for (int i = 0; i < 4; i++) d[i] = fv_const(c.out[i]);
    return true;
}

static void fv__batch_norm_back(fl_node *n, fl_var *dy) {
    fl_batch_norm_args a = *(const fl_batch_norm_args *)fv_args(n);
    fl_var *in[5], *d[4] = {NULL};
    fl_tensor *t[5];
    bool wanted[] = {fv_needs(n, 0), fv_needs(n, 1), fv_needs(n, 2), fv_needs(n, 3)};
    for (int i = 0; i < 5; i++) t[i] = fv_value(in[i] = fv_saved(n, i));
    if (wanted[3] && !a.relu) fv_add_grad(n, 3, dy);
    wanted[3] = wanted[3] && a.relu;
    if (fl_grad_enabled()) {
        in[2] = in[3] = NULL;
        fv__batch_norm_grads(in, dy, a, wanted, d);
    } else {
        fv__run_batch_norm_grad(t, dy->value, a, wanted, d);
    }
    for (int i = 0; i < 4; i++)
        if (wanted[i]) fv_add_grad(n, i, d[i]);
}

/* From saved x, w, mean, var, b, add. */
static fl_tensor *fv__batch_norm_recompute(fl_node *n) {
    static const int place[] = {0, 1, 5, 6, 2, 3};
    fl_tensor *t[6], *y;
    for (int i = 0; i < 6; i++)
        if (!(t[i] = fv_value(fv_saved(n, place[i])))) return NULL;
    return fl__run_batch_norm(t, *(const fl_batch_norm_args *)fv_args(n), t + 4, &y) ? y : NULL;
}
#endif

/* By the statistics of the batch, which become stats. */
static FL_T *FL_W(_batch_norm_train)(FL_T *const *in, fl_batch_norm_args a, fl_tensor **stats) {
    fl_tensor *t[4], *y[3];
    for (int i = 0; i < 4; i++) t[i] = FL_VALUE(in[i]);
    if (!fl__run_batch_norm(t, a, NULL, y)) return NULL;
    stats[0] = y[1], stats[1] = y[2];
#ifdef FL_ON_TENSORS
    return y[0];
#else
    fl_var *mean = fv_const(y[1]), *var = fv_const(y[2]), *kept = a.relu ? FV_OUT : fv_num(1);
    return fv_record_opt(
        y[0], &(fv_record_opts){.op = fl__batch_norm_op(a),
                                .recompute = fv__batch_norm_recompute,
                                .in = FV_IN(in[0], in[1], in[2], in[3]),
                                .saved = FV_SAVE(in[0], in[1], mean, var, kept, in[2], in[3]),
                                .n_recompute_only = 2,
                                .args = &a});
#endif
}

#ifndef FL_ON_TENSORS
typedef struct fv__joint_args {
    fl_batch_norm_args norm;
    bool (*reduce)(fl_tensor *sums, void *user);
    void *user;
} fv__joint_args;

/* As FL_W(_batch_norm_grads), with the means over all parts of the batch. Saved: x, w, mean, var, y. */
static void fv__batch_norm_joint_back(fl_node *n, fl_var *dy) {
    const fv__joint_args *a = fv_args(n);
    const fl_batch_norm_opts o = {.reduce = a->reduce, .reduce_user = a->user};
    fl_tensor *t[5];
    if (fl_grad_enabled()) {
        fl_fail("fl_batch_norm: with .reduce it has no second derivative");
        return;
    }
    for (int i = 0; i < 5; i++)
        if (!(t[i] = fv_value(fv_saved(n, i)))) return;
    fl_tensor *x = fl_cast(t[0], t[2]->dtype), *g = fl_cast(dy->value, t[2]->dtype);
    if (a->norm.relu) g = fl_where(fl_le(t[4], fl_num(0)), fl_num(0), g);
    if (!x || !g) return;
    const fl_axes axes = fl__axes_but_channels(x);
    fl_tensor *rstd = fl_rsqrt(fl_add(t[3], fl_num(a->norm.eps))), *y = fl_mul(fl_sub(x, t[2]), rstd);
    fl_tensor *sum = fl_sum(g, axes), *with_y = fl_sum(fl_mul(g, y), axes);
    double count = (double)(fl_numel(x) / x->shape[1]);
    fl_shape channels = {x->ndim - 1, {x->shape[1]}};
    for (int i = 1; i < channels.ndim; i++) channels.dim[i] = 1;
    if (!with_y) return;
    if (fv_needs(n, 1)) fv_add_grad(n, 1, fv_const(fl_reshape(with_y, channels)));
    if (fv_needs(n, 2)) fv_add_grad(n, 2, fv_const(fl_reshape(sum, channels)));
    if (fv_needs(n, 3)) fv_add_grad(n, 3, fv_const(g));
    if (!fv_needs(n, 0) || !fl__joint_means(&o, &sum, &with_y, &count)) return;
    fl_tensor *dx = fl_sub(g, fl_add(sum, fl_mul(y, with_y)));
    fv_add_grad(n, 0, fv_const(fl_mul(fl_mul(dx, rstd), t[1])));
}
#endif

/* By the statistics of a batch of which x is a part. */
static FL_T *FL_W(_batch_norm_joint)(FL_T *const *in, fl_batch_norm_args a, const fl_batch_norm_opts *o,
                                     fl_tensor **stats, double *count) {
    fl_tensor *t[4], *y;
    for (int i = 0; i < 4; i++) t[i] = FL_VALUE(in[i]);
    if (!fl__joint_statistics(t[0], o, stats, count) || !fl__run_batch_norm(t, a, stats, &y)) return NULL;
#ifdef FL_ON_TENSORS
    return y;
#else
    const fv__joint_args args = {a, o->reduce, o->reduce_user};
    fl_var *mean = fv_const(stats[0]), *var = fv_const(stats[1]), *kept = a.relu ? FV_OUT : fv_num(1);
    return fv_record_opt(y, &(fv_record_opts){.name = "batch_norm",
                                              .back = fv__batch_norm_joint_back,
                                              .in = FV_IN(in[0], in[1], in[2], in[3]),
                                              .saved = FV_SAVE(in[0], in[1], mean, var, kept),
                                              .args = &args,
                                              .bytes = sizeof args});
#endif
}

/* By the running statistics: in one pass where nothing is recorded. */
#ifdef FL_ON_TENSORS
static fl_tensor *fl__batch_norm_fixed(fl_tensor *const *in, const fl_batch_norm_opts *o, double eps) {
    const fl_batch_norm_args a = {.eps = eps, .relu = o->relu};
    fl_shape shape = {in[0]->ndim, {1, in[0]->shape[1]}};
    fl_tensor *stats[2] = {o->mean, o->var}, *y;
    for (int i = 2; i < shape.ndim; i++) shape.dim[i] = 1;
    for (int i = 0; i < 2; i++) {
        stats[i] = fl_contiguous(fl_cast(stats[i], fl_dtype_wide(in[0]->dtype)));
        if (!(stats[i] = fl_reshape(stats[i], shape))) return NULL;
    }
    return fl__run_batch_norm(in, a, stats, &y) ? y : NULL;
}
#else
static fl_var *fv__batch_norm_fixed(fl_var *const *in, const fl_batch_norm_opts *o, double eps) {
    if (!fl_grad_enabled()) {
        fl_tensor *t[4];
        for (int i = 0; i < 4; i++) t[i] = fv_value(in[i]);
        return fv_const(fl__batch_norm_fixed(t, o, eps));
    }
    int ndim = fv_value(in[0])->ndim;
    fl_var *mean = fv__as_channels(fv_const(o->mean), ndim);
    fl_var *var = fv__as_channels(fv_const(o->var), ndim);
    fl_var *scale = fv_mul(fv_rsqrt(fv_add(var, fv_num(eps))), in[1]);
    fl_var *x = fv__widened(in[0]), *y = x ? fv_add(fv_mul(fv_sub(x, mean), scale), in[2]) : NULL;
    if (!fv_value(in[3])->weak) y = fv_add(y, in[3]);
    return o->relu ? fv_relu(y) : y;
}
#endif

/* add: NULL, or what is added */
static FL_T *FL_W(_batch_norm)(FL_T *x, FL_T *weight, FL_T *bias, FL_T *add, fl_batch_norm_opts o) {
    if (!FL_W(_channels_fit)("fl_batch_norm", x, weight, bias) ||
        !fl__batch_norm_fits(FL_VALUE(x), &o) || fl_error()) /* an option that failed */
        return NULL;
    const fl_tensor *t = FL_VALUE(x);
    const int64_t channels = t->shape[1];
    double n = channels ? (double)(fl_numel(t) / channels) : 2;
    fl_batch_norm_args a = {.eps = fl_option(o.eps, 1e-5), .relu = o.relu};
    fl_scope s = fl_scope_begin();
    FL_T *in[] = {x, weight, bias, add}, *y = NULL;
    fl_tensor *stats[2];
    if (FL_W(_batch_operands)(in))
        y = !o.train    ? FL_W(_batch_norm_fixed)(in, &o, a.eps)
            : !o.reduce ? FL_W(_batch_norm_train)(in, a, stats)
                        : FL_W(_batch_norm_joint)(in, a, &o, stats, &n);
    bool ok = y && (!o.train || fl__blend_statistics(&o, stats[0], stats[1], n));
    return FL_GIVE(&s, ok ? FL_W(_narrowed)(y, x) : NULL);
}

FL_T *FL_W(batch_norm_opt)(FL_T *x, FL_T *weight, FL_T *bias, fl_batch_norm_opts o) {
    if (FL_ABSENT("batch_norm", x)) return NULL;
    return FL_W(_batch_norm)(x, weight, bias, NULL, o);
}

FL_T *FL_W(batch_norm_add_opt)(FL_T *x, FL_T *weight, FL_T *bias, FL_T *y, fl_batch_norm_opts o) {
    if (FL_ABSENT("batch_norm_add", x) || FL_ABSENT("batch_norm_add", y)) return NULL;
    if (!fl_same_shape(FL_VALUE(x), FL_VALUE(y)))
        return fl_bad("fl_batch_norm_add: shapes %s and %s", FL_SHAPE_TEXT(FL_VALUE(x)),
                      FL_SHAPE_TEXT(FL_VALUE(y)));
    return FL_W(_batch_norm)(x, weight, bias, y, o);
}

/* ---- group and instance norm ---- */

static FL_T *FL_W(_grouped_norm)(const char *fn, FL_T *x, int64_t groups, FL_T *weight, FL_T *bias,
                                 double eps) {
    if (!FL_W(_channels_fit)(fn, x, weight, bias)) return NULL;
    if (groups < 1 || FL_VALUE(x)->shape[1] % groups)
        return fl_bad("%s: %lld groups of the channels of %s", fn, (long long)groups,
                      FL_SHAPE_TEXT(FL_VALUE(x)));
    fl_scope s = fl_scope_begin();
    FL_T *in[] = {x, weight, bias, NULL}, *y = NULL;
    fl_tensor *stats[2];
    if (!FL_AUTOCAST(fl_op_layer_norm, in, 3)) return FL_GIVE(&s, NULL);
    x = in[0];
    const fl_batch_norm_args a = {.eps = eps, .groups = groups};
    if (FL_W(_batch_operands)(in)) y = FL_W(_batch_norm_train)(in, a, stats);
    return FL_GIVE(&s, FL_W(_narrowed)(y, x));
}

FL_T *FL_W(group_norm)(FL_T *x, int64_t groups, FL_T *weight, FL_T *bias, double eps) {
    if (FL_ABSENT("group_norm", x)) return NULL;
    return FL_W(_grouped_norm)("fl_group_norm", x, groups, weight, bias, eps);
}

FL_T *FL_W(instance_norm)(FL_T *x, FL_T *weight, FL_T *bias, double eps) {
    if (FL_ABSENT("instance_norm", x)) return NULL;
    int64_t channels = FL_VALUE(x)->ndim >= 2 ? FL_VALUE(x)->shape[1] : 1;
    return FL_W(_grouped_norm)("fl_instance_norm", x, channels ? channels : 1, weight, bias, eps);
}

/* ---- of neighbouring channels, and of vectors ---- */

/* A sum of slices of the squares with zeros around: `size` of them, but no more than overlap x. */
FL_T *FL_W(local_response_norm)(FL_T *x, int64_t size, double alpha, double beta, double k) {
    if (FL_ABSENT("local_response_norm", x)) return NULL;
    const fl_tensor *t = FL_VALUE(x);
    if (t->ndim < 2 || size < 1)
        return fl_bad("fl_local_response_norm: size %lld of channels of %s", (long long)size,
                      FL_SHAPE_TEXT(t));
    fl_scope s = fl_scope_begin();
    FL_T *wide = FL_W(_widened)(x), *squares = FL_W(square)(wide), *sum = squares;
    int64_t c = t->shape[1], before = size / 2, after = size - 1 - before;
    if (!sum) return FL_GIVE(&s, NULL);
    for (int64_t d = -(before < c ? before : c - 1); d <= (after < c ? after : c - 1); d++) {
        if (d == 0) continue;
        int64_t from = d < 0 ? 0 : d, to = d < 0 ? c + d : c;
        FL_T *part = FL_W(slice)(squares, 1, from, to, 1);
        if (!part) return FL_GIVE(&s, NULL);
        fl_tensor *outside = fl_slice(FL_VALUE(squares), 1, 0, c - (to - from), 1);
        FL_T *zeros = FL_OF(fl_full_like(outside, 0));
        FL_T *pair[] = {d < 0 ? zeros : part, d < 0 ? part : zeros};
        sum = zeros ? ADD(sum, FL_W(concat)(pair, 2, 1)) : NULL;
    }
    FL_T *scale = ADD(CONST(k), MUL(CONST(alpha / (double)size), sum));
    return FL_GIVE(&s, FL_W(_narrowed)(DIV(wide, POW(scale, CONST(beta))), x));
}

FL_T *FL_W(normalize)(FL_T *x, double p, int axis, double eps) {
    if (FL_ABSENT("normalize", x)) return NULL;
    fl_scope s = fl_scope_begin();
    FL_T *wide = FL_W(_widened)(x), *size = FL_W(norm)(wide, p, FL_AXES_KEEP(axis));
    return FL_GIVE(&s, FL_W(_narrowed)(DIV(wide, MAX(size, CONST(eps))), x));
}

FL_T *FL_W(weight_norm)(FL_T *v, FL_T *g, int axis) {
    if (FL_ABSENT("weight_norm", v) || FL_ABSENT("weight_norm", g)) return NULL;
    int kept = fl_own_axis_of("fl_weight_norm", FL_VALUE(v), axis);
    if (kept < 0) return NULL;
    fl_axes others = {.keepdim = true};
    for (int i = 0; i < FL_VALUE(v)->ndim; i++)
        if (i != kept) others.axis[others.n++] = i;
    fl_scope s = fl_scope_begin();
    FL_T *in[] = {v, g};
    if (!FL_W(_widen)(in, 2)) return FL_GIVE(&s, NULL);
    FL_T *size = others.n ? FL_W(norm)(in[0], 2, others) : ABS(in[0]);
    return FL_GIVE(&s, FL_W(_narrowed)(MUL(in[0], DIV(in[1], size)), v));
}

FL_T *FL_W(cosine_similarity)(FL_T *a, FL_T *b, int axis, double eps) {
    if (FL_ABSENT("cosine_similarity", a) || FL_ABSENT("cosine_similarity", b)) return NULL;
    fl_scope s = fl_scope_begin();
    FL_T *in[] = {a, b};
    if (!FL_AUTOCAST(FL_OP_sum, in, 2)) return FL_GIVE(&s, NULL);
    a = in[0];
    if (!FL_W(_widen)(in, 2)) return FL_GIVE(&s, NULL);
    FL_T *product = FL_W(sum)(MUL(in[0], in[1]), FL_AXES(axis));
    FL_T *size_a = MAX(FL_W(norm)(in[0], 2, FL_AXES(axis)), CONST(eps));
    FL_T *size_b = MAX(FL_W(norm)(in[1], 2, FL_AXES(axis)), CONST(eps));
    return FL_GIVE(&s, FL_W(_narrowed)(DIV(product, MUL(size_a, size_b)), a));
}

FL_T *FL_W(pairwise_distance)(FL_T *a, FL_T *b, double p, double eps) {
    if (FL_ABSENT("pairwise_distance", a) || FL_ABSENT("pairwise_distance", b)) return NULL;
    fl_scope s = fl_scope_begin();
    FL_T *in[] = {a, b};
    if (!FL_AUTOCAST(FL_OP_sum, in, 2)) return FL_GIVE(&s, NULL);
    a = in[0];
    if (!FL_W(_widen)(in, 2)) return FL_GIVE(&s, NULL);
    FL_T *y = FL_W(norm)(ADD(SUB(in[0], in[1]), CONST(eps)), p, FL_AXES(-1));
    return FL_GIVE(&s, FL_W(_narrowed)(y, a));
}

#endif
/* MIT licence: see LICENSE. */
