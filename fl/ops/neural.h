/* fl/ops/neural.h - norms, embeddings, attention, recurrent layers

   Prototypes and formulas stand in fl_composed.h. */
#ifndef FL_T
#include "../../fl_composed.h"
#if defined(FL_IMPL_ONLY_OPS_NEURAL) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_NEURAL_IMPL
#define FL_OPS_NEURAL_IMPL
#include "index.h"
#include "linear.h"
#include "reduce.h"
#include "softmax.h"
#include <limits.h>
#include <math.h>
#define FL_TEXT "neural.h"
#include "expand.h"
#endif
#endif
#else /* the text: see expand.h */

/* >>norms */

#ifdef FL_ON_TENSORS
/* The axes of t from `first` on. */
static fl_axes fl__axes_from(const fl_tensor *t, int first) {
    fl_axes a = {.n = t->ndim - first, .keepdim = true};
    for (int i = 0; i < a.n; i++) a.axis[i] = first + i;
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

/* The first axis of the last `dims` of x; -1 after an error. */
static int fl__first_of(const char *fn, const fl_tensor *x, int dims) {
    if (dims >= 1 && dims <= x->ndim) return x->ndim - dims;
    fl_bad("%s: the last %d dims of shape %s", fn, dims, FL_SHAPE_TEXT(x));
    return -1;
}
#endif

/* (x - mean) / sqrt(var + eps), mean and biased var over the axes */
static FL_T *FL_W(_standardised)(FL_T *x, fl_axes axes, double eps) {
    FL_T *centred = SUB(x, FL_W(mean)(x, axes));
    FL_T *var = FL_W(mean)(FL_W(square)(centred), axes);
    return MUL(centred, FL_W(rsqrt)(ADD(var, CONST(eps))));
}

static FL_T *FL_W(_affine)(FL_T *y, FL_T *weight, FL_T *bias) {
    if (weight) y = MUL(y, weight);
    return bias ? ADD(y, bias) : y;
}

/* w [c] as [c, 1, ...], which broadcasts with [n, c, ...] of ndim dims; NULL stays */
static FL_T *FL_W(_as_channels)(FL_T *w, int ndim) {
    fl_shape s = {ndim - 1, {0}};
    if (!w) return NULL;
    for (int i = 0; i < s.ndim; i++) s.dim[i] = i ? 1 : FL_VALUE(w)->shape[0];
    return FL_W(reshape)(w, s);
}

/* Gradients of (x - mean) rstd w + b, given that of the result: of x, w, b where they are wanted. mean,
   rstd: of the forward pass, or NULL: computed here, and differentiable. With n = (x - mean) rstd and
   g = dy w, and means over the normalised dims: dx = rstd (g - mean(g) - n mean(g n)); rms: without
   the first mean. */
static bool FL_W(_layer_norm_grads)(FL_T *const *in, FL_T *dy, fl_norm_args a, const bool *wanted,
                                    FL_T **d) {
    FL_T *x = in[0], *w = in[1], *mean = in[2], *rstd = in[3];
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

/* What the record takes: x as a float, a half or what it promotes to with w and b; these in the
   dtype that computes, and numbers where they are NULL. */
static bool FL_W(_norm_operands)(const char *fn, FL_T **in, int dims) {
    FL_T *x = in[0], *w = in[1], *b = in[2];
    int first = fl__first_of(fn, FL_VALUE(x), dims);
    if (first < 0 || !fl__ends_as(fn, FL_VALUE(x), first, w ? FL_VALUE(w) : NULL) ||
        !fl__ends_as(fn, FL_VALUE(x), first, b ? FL_VALUE(b) : NULL) || !(x = FL_W(_floating)(x)))
        return false;
    fl_tensor *t = FL_VALUE(x), *all[] = {t, w ? FL_VALUE(w) : t, b ? FL_VALUE(b) : t};
    fl_dtype wide = fl_dtype_wide(fl_is_narrow(t) ? t->dtype : fl_result_type(3, all));
    in[0] = fl_is_narrow(t) ? x : FL_W(cast)(x, wide);
    in[1] = w ? FL_W(cast)(w, wide) : CONST(1);
    in[2] = b ? FL_W(cast)(b, wide) : CONST(0);
    return in[0] && in[1] && in[2];
}

#ifdef FL_ON_TENSORS
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

static bool fl__compose_layer_norm_grad(const fl_call *c, fl_tensor **d) {
    const bool wanted[] = {c->out[0], c->out[1], c->out[2]};
    return fl__layer_norm_grads(c->in, c->in[4], *(const fl_norm_args *)c->args, wanted, d);
}

/* y, mean and rstd: see FL_OP_layer_norm. */
static bool fl__run_layer_norm(fl_tensor *const *in, fl_norm_args a, fl_tensor **y) {
    fl_tensor *x = in[0];
    fl_shape rows = fl_shape_of(x);
    for (int i = x->ndim - a.dims; i < x->ndim; i++) rows.dim[i] = 1;
    fl_dtype wide = fl_dtype_wide(x->dtype);
    fl_call c = {.op = FL_OP_layer_norm, .n_out = 3, .n_in = 3, .args = &a};
    for (int i = 0; i < 3; i++) c.in[i] = in[i];
    c.out[0] = y[0] = fl_call_out(x->family, fl_shape_of(x), x->dtype);
    c.out[1] = y[1] = a.rms ? NULL : fl_call_out(x->family, rows, wide);
    c.out[2] = y[2] = fl_call_out(x->family, rows, wide);
    if (!y[0] || (!y[1] && !a.rms) || !y[2]) return fl_raise();
    return fl__run_fused(&c, fl__compose_layer_norm);
}

/* in: x, w, mean, rstd */
static bool fl__run_layer_norm_grad(fl_tensor *const *in, fl_tensor *dy, fl_norm_args a,
                                    const bool *wanted, fl_tensor **d) {
    fl_call c = {.op = FL_OP_layer_norm_grad, .n_out = 3, .n_in = 5, .args = &a};
    fl_tensor *x = in[0];
    fl_shape w = {a.dims, {0}};
    for (int i = 0; i < a.dims; i++) w.dim[i] = x->shape[x->ndim - a.dims + i];
    for (int i = 0; i < 4; i++) c.in[i] = in[i];
    c.in[4] = dy;
    for (int i = 0; i < 3; i++) {
        if (!wanted[i]) continue;
        c.out[i] = d[i] = fl_call_out(x->family, i ? w : fl_shape_of(x),
                                      i ? fl_dtype_wide(x->dtype) : x->dtype);
        if (!d[i]) return fl_raise();
    }
    return fl__run_fused(&c, fl__compose_layer_norm_grad);
}

static fl_tensor *fl__normed(const char *fn, fl_tensor *x, fl_tensor *w, fl_tensor *b,
                             fl_norm_args a) {
    fl_scope s = fl_scope_begin();
    fl_tensor *in[] = {x, w, b}, *y[3] = {NULL};
    bool ok = fl__norm_operands(fn, in, a.dims) && fl__run_layer_norm(in, a, y);
    return fl_scope_return(&s, ok ? y[0] : NULL);
}
#else
static void fv__layer_norm_back(fl_node *n, fl_var *dy) {
    fl_norm_args a = *(const fl_norm_args *)fv_args(n);
    fl_var *in[4], *d[3] = {NULL};
    fl_tensor *t[4], *dt[3] = {NULL};
    const bool wanted[] = {fv_needs(n, 0), fv_needs(n, 1), fv_needs(n, 2)};
    for (int i = 0; i < 4; i++) t[i] = fv_value(in[i] = fv_saved(n, i));
    if (fl_grad_enabled()) {
        in[2] = in[3] = NULL;
        fv__layer_norm_grads(in, dy, a, wanted, d);
    } else if (fl__run_layer_norm_grad(t, dy->value, a, wanted, dt)) {
        for (int i = 0; i < 3; i++) d[i] = fv_const(dt[i]);
    }
    for (int i = 0; i < 3; i++)
        if (wanted[i]) fv_add_grad(n, i, d[i]);
}

static fl_tensor *fv__layer_norm_recompute(fl_node *n) {
    fl_tensor *y[3], *t[] = {fv_value(fv_saved(n, 0)), fv_value(fv_saved(n, 1)),
                             fv_value(fv_saved(n, 4))};
    if (!t[0] || !t[1] || !t[2]) return NULL;
    return fl__run_layer_norm(t, *(const fl_norm_args *)fv_args(n), y) ? y[0] : NULL;
}

static fl_var *fv__normed(const char *fn, fl_var *x, fl_var *w, fl_var *b, fl_norm_args a) {
    fl_scope s = fl_scope_begin();
    fl_var *in[] = {x, w, b};
    fl_tensor *y[3] = {NULL};
    if (!fv__norm_operands(fn, in, a.dims)) return fv_scope_return(&s, NULL);
    fl_tensor *t[] = {in[0]->value, in[1]->value, in[2]->value};
    if (!fl__run_layer_norm(t, a, y)) return fv_scope_return(&s, NULL);
    fl_var *mean = a.rms ? fv_num(0) : fv_const(y[1]), *rstd = fv_const(y[2]);
    fl_var *n = fv_record_opt(y[0], &(fv_record_opts){.name = "layer_norm",
                                             .back = fv__layer_norm_back,
                                             .recompute = fv__layer_norm_recompute,
                                             .in = FV_IN(in[0], in[1], in[2]),
                                             .saved = FV_SAVE(in[0], in[1], mean, rstd, in[2]),
                                             .n_recompute_only = 1,
                                             .args = &a,
                                             .bytes = sizeof a});
    return fv_scope_return(&s, n);
}
#endif

FL_T *FL_W(layer_norm)(FL_T *x, int dims, FL_T *weight, FL_T *bias, double eps) {
    if (FL_ABSENT("layer_norm", x)) return NULL;
    fl_norm_args a = {.dims = dims, .eps = eps};
    return FL_W(_normed)("fl_layer_norm", x, weight, bias, a);
}

FL_T *FL_W(rms_norm)(FL_T *x, int dims, FL_T *weight, double eps) {
    if (FL_ABSENT("rms_norm", x)) return NULL;
    fl_norm_args a = {.dims = dims, .eps = eps, .rms = true};
    return FL_W(_normed)("fl_rms_norm", x, weight, NULL, a);
}

/* Of both, or false after an error. */
static bool FL_W(_channels_fit)(const char *fn, FL_T *x, FL_T *weight, FL_T *bias) {
    return fl__per_channel(fn, FL_VALUE(x), weight ? FL_VALUE(weight) : NULL) &&
           fl__per_channel(fn, FL_VALUE(x), bias ? FL_VALUE(bias) : NULL);
}

/* fn: of group_norm, or of instance_norm, whose groups are the channels */
static FL_T *FL_W(_grouped_norm)(const char *fn, FL_T *x, int64_t groups, FL_T *weight, FL_T *bias,
                                 double eps) {
    const fl_tensor *t = FL_VALUE(x);
    if (!FL_W(_channels_fit)(fn, x, weight, bias)) return NULL;
    if (groups < 1 || t->shape[1] % groups)
        return fl_bad("%s: %lld groups of the channels of %s", fn, (long long)groups,
                       FL_SHAPE_TEXT(t));
    fl_scope s = fl_scope_begin();
    FL_T *in[] = {x, weight, bias};
    if (!FL_W(_widen)(in, 3)) return FL_GIVE(&s, NULL);
    fl_shape parts = {t->ndim + 1, {t->shape[0], groups, t->shape[1] / groups}};
    for (int i = 2; i < t->ndim; i++) parts.dim[i + 1] = t->shape[i];
    FL_T *y = FL_W(reshape)(in[0], parts);
    if (y) y = FL_W(_standardised)(y, fl__axes_from(FL_VALUE(y), 2), eps);
    y = FL_W(_affine)(FL_W(reshape)(y, fl_shape_of(t)), FL_W(_as_channels)(in[1], t->ndim),
                      FL_W(_as_channels)(in[2], t->ndim));
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

#ifdef FL_ON_TENSORS
/* (1 - momentum) running + momentum batch, of running's shape and dtype */
static fl_tensor *fl__blended(fl_tensor *running, fl_tensor *batch, double momentum) {
    fl_tensor *flat = fl_reshape(batch, fl_shape_of(running));
    fl_tensor *y = ADD(MUL(running, CONST(1 - momentum)), MUL(flat, CONST(momentum)));
    return y ? fl_cast(y, running->dtype) : NULL;
}

/* Both new values first, then both are written. n: values per channel */
static bool fl__blend_statistics(const fl_batch_norm_opts *o, fl_tensor *mean, fl_tensor *var,
                                 int64_t n) {
    double momentum = fl_option(o->momentum, 0.1);
    fl_tensor *m = NULL, *v = NULL;
    if (o->mean && !(m = fl__blended(o->mean, mean, momentum))) return false;
    var = MUL(var, CONST((double)n / (double)(n - 1)));
    if (o->var && !(v = fl__blended(o->var, var, momentum))) return false;
    return (!m || fl_assign(o->mean, m)) && (!v || fl_assign(o->var, v));
}

static bool fl__batch_norm_fits(const fl_tensor *x, const fl_batch_norm_opts *o) {
    const char *fn = "fl_batch_norm";
    if (!fl__per_channel(fn, x, o->mean) || !fl__per_channel(fn, x, o->var)) return false;
    if (!o->train && (!o->mean || !o->var))
        return fl_refuse("%s: running mean and variance are wanted out of training", fn);
    int64_t n = x->shape[0];
    for (int i = 2; i < x->ndim; i++) n *= x->shape[i];
    return !o->train || n > 1 ||
           fl_refuse("%s: input %s has %lld values per channel, batch statistics want 2", fn,
                   FL_SHAPE_TEXT(x), (long long)n);
}
#endif

#ifdef FL_ON_TENSORS
/* All axes but the channels'. */
static fl_axes fl__axes_but_channels(const fl_tensor *x) {
    fl_axes a = fl__axes_from(x, 1);
    a.axis[0] = 0;
    return a;
}
#endif

/* Gradients of relu((x - mean) / sqrt(var + eps) w + b + add), given that of the result: of x, w, b,
   add where they are wanted. in: x, w, mean, var, y; mean and var of the forward pass, or NULL:
   computed here, and differentiable. With n the normalised x, g = dy where y > 0, and means per
   channel: dx = w / sqrt(var + eps) (g - mean(g) - n mean(g n)). */
static bool FL_W(_batch_norm_grads)(FL_T *const *in, FL_T *dy, fl_batch_norm_args a,
                                    const bool *wanted, FL_T **d) {
    FL_T *x = in[0], *w = in[1], *mean = in[2], *var = in[3];
    fl_axes axes = fl__axes_but_channels(FL_VALUE(x));
    fl_shape channels = {FL_VALUE(x)->ndim - 1, {FL_VALUE(x)->shape[1]}};
    for (int i = 1; i < channels.ndim; i++) channels.dim[i] = 1;
    FL_T *g = a.relu ? SELECT(LE(in[4], CONST(0)), CONST(0), dy) : dy;
    FL_T *centred = SUB(x, mean ? mean : FL_W(mean)(x, axes));
    if (!var) var = FL_W(mean)(FL_W(square)(centred), axes);
    FL_T *rstd = FL_W(rsqrt)(ADD(var, CONST(a.eps))), *n = MUL(centred, rstd), *gn = MUL(g, n);
    FL_T *rest = ADD(MUL(n, FL_W(mean)(gn, axes)), FL_W(mean)(g, axes));
    if (wanted[0]) d[0] = MUL(MUL(rstd, w), SUB(g, rest));
    if (wanted[1]) d[1] = FL_W(reshape)(FL_W(sum)(gn, axes), channels);
    if (wanted[2]) d[2] = FL_W(reshape)(FL_W(sum)(g, axes), channels);
    if (wanted[3]) d[3] = g;
    return rest != NULL;
}

/* x, w, b, add become what the record takes: of one dtype, that computes, and numbers for NULLs. */
static bool FL_W(_batch_operands)(FL_T **in) {
    fl_tensor *all[4];
    int ndim = FL_VALUE(in[0])->ndim, n = 0;
    for (int i = 0; i < 4; i++)
        if (in[i]) all[n++] = FL_VALUE(in[i]);
    fl_dtype d = fl_dtype_wide(fl_result_type(n, all));
    if (!fl_dtype_is_float(d)) d = FL_F32;
    for (int i = 0; i < 4; i++) {
        if (in[i] && !(in[i] = FL_W(cast)(in[i], d))) return false;
        if (in[i] && (i == 1 || i == 2)) in[i] = FL_W(_as_channels)(in[i], ndim);
        else if (!in[i]) in[i] = CONST(i == 1);
        if (!in[i]) return false;
    }
    return true;
}

#ifdef FL_ON_TENSORS
static bool fl__compose_batch_norm(const fl_call *c, fl_tensor **y) {
    const fl_batch_norm_args *a = c->args;
    fl_axes axes = fl__axes_but_channels(c->in[0]);
    y[1] = c->n_in == 6 ? c->in[4] : fl_mean(c->in[0], axes);
    fl_tensor *centred = fl_sub(c->in[0], y[1]);
    y[2] = c->n_in == 6 ? c->in[5] : fl_mean(fl_square(centred), axes);
    fl_tensor *scale = fl_mul(fl_rsqrt(fl_add(y[2], fl_num(a->eps))), c->in[1]);
    y[0] = fl_add(fl_mul(centred, scale), c->in[2]);
    if (!c->in[3]->weak) y[0] = fl_add(y[0], c->in[3]);
    if (a->relu) y[0] = fl_relu(y[0]);
    return y[0] != NULL;
}

static bool fl__compose_batch_norm_grad(const fl_call *c, fl_tensor **d) {
    const bool wanted[] = {c->out[0], c->out[1], c->out[2], c->out[3]};
    const fl_batch_norm_args *a = c->args;
    return fl__batch_norm_grads(c->in, c->in[5], *a, wanted, d);
}

/* Where t's elements lie as x's do: t, or a copy that lies so. */
static fl_tensor *fl__lying_as(fl_tensor *t, const fl_tensor *x) {
    fl_tensor *out = fl_lay_out_as(fl_out_like(t, t->dtype), x);
    if (!out) return fl_raise();
    bool same = true;
    for (int i = 0; i < t->ndim; i++) same &= t->stride[i] == out->stride[i] || t->shape[i] == 1;
    return same ? t : fl_run_to(FL_OP_copy, out, t, NULL, NULL);
}

/* y, mean and var: see FL_OP_batch_norm. All images lie as x, which has no gaps. given: mean and
   var, already known, or NULL. */
static bool fl__run_batch_norm(fl_tensor *const *in, fl_batch_norm_args a, fl_tensor *const *given,
                               fl_tensor **y) {
    fl_tensor *x = fl__lying_as(in[0], in[0]);
    fl_tensor *add = x && !in[3]->weak ? fl__lying_as(in[3], x) : in[3];
    if (!x || !add) return false;
    fl_shape channels = {x->ndim, {0}};
    for (int i = 0; i < x->ndim; i++) channels.dim[i] = i == 1 ? x->shape[1] : 1;
    fl_call c = {.op = FL_OP_batch_norm, .n_out = given ? 1 : 3, .n_in = given ? 6 : 4, .args = &a};
    c.in[0] = x, c.in[1] = in[1], c.in[2] = in[2], c.in[3] = add;
    c.out[0] = y[0] = fl_lay_out_as(fl_out_like(x, x->dtype), x);
    bool ok = y[0] != NULL;
    for (int i = 0; i < 2; i++) {
        if (given) c.in[4 + i] = given[i];
        else ok &= (c.out[1 + i] = y[1 + i] = fl_call_out(x->family, channels, x->dtype)) != NULL;
    }
    if (!ok) return fl_raise();
    return fl__run_fused(&c, fl__compose_batch_norm);
}

/* in: x, w, mean, var, y */
static bool fl__run_batch_norm_grad(fl_tensor *const *in, fl_tensor *dy, fl_batch_norm_args a,
                                    const bool *wanted, fl_tensor **d) {
    fl_tensor *x = fl__lying_as(in[0], in[0]);
    if (!x || !(dy = fl__lying_as(dy, x))) return false;
    fl_shape channels = {x->ndim - 1, {x->shape[1]}};
    for (int i = 1; i < channels.ndim; i++) channels.dim[i] = 1;
    fl_call c = {.op = FL_OP_batch_norm_grad, .n_out = 4, .n_in = 6, .args = &a};
    for (int i = 0; i < 5; i++) c.in[i] = i ? in[i] : x;
    c.in[5] = dy;
    for (int i = 0; i < 4; i++) {
        if (!wanted[i]) continue;
        d[i] = i % 3 ? fl_call_out(x->family, channels, x->dtype)
                     : fl_lay_out_as(fl_out_like(x, x->dtype), x);
        if (!(c.out[i] = d[i])) return fl_raise();
    }
    return fl__run_fused(&c, fl__compose_batch_norm_grad);
}

static fl_tensor *fl__batch_normed(fl_tensor *const *in, fl_batch_norm_args a, fl_tensor **stats) {
    fl_tensor *y[3] = {NULL};
    if (!fl__run_batch_norm(in, a, NULL, y)) return NULL;
    stats[0] = y[1], stats[1] = y[2];
    return y[0];
}
#else
static void fv__batch_norm_back(fl_node *n, fl_var *dy) {
    fl_batch_norm_args a = *(const fl_batch_norm_args *)fv_args(n);
    fl_var *in[5], *d[4] = {NULL};
    fl_tensor *t[5], *dt[4] = {NULL};
    bool wanted[] = {fv_needs(n, 0), fv_needs(n, 1), fv_needs(n, 2), fv_needs(n, 3)};
    for (int i = 0; i < 5; i++) t[i] = fv_value(in[i] = fv_saved(n, i));
    if (wanted[3] && !a.relu) fv_add_grad(n, 3, dy);
    wanted[3] = wanted[3] && a.relu;
    if (fl_grad_enabled()) {
        in[2] = in[3] = NULL;
        fv__batch_norm_grads(in, dy, a, wanted, d);
    } else if (fl__run_batch_norm_grad(t, dy->value, a, wanted, dt)) {
        for (int i = 0; i < 4; i++) d[i] = fv_const(dt[i]);
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
    const fl_batch_norm_args *a = fv_args(n);
    return fl__run_batch_norm(t, *a, t + 4, &y) ? y : NULL;
}

static fl_var *fv__batch_normed(fl_var *const *in, fl_batch_norm_args a, fl_tensor **stats) {
    fl_tensor *t[4], *y[3] = {NULL};
    for (int i = 0; i < 4; i++) t[i] = in[i]->value;
    if (!fl__run_batch_norm(t, a, NULL, y)) return NULL;
    stats[0] = y[1], stats[1] = y[2];
    fl_var *mean = fv_const(y[1]), *var = fv_const(y[2]), *kept = a.relu ? FV_OUT : fv_num(1);
    return fv_record_opt(
        y[0], &(fv_record_opts){.name = "batch_norm",
                          .back = fv__batch_norm_back,
                          .recompute = fv__batch_norm_recompute,
                          .in = FV_IN(in[0], in[1], in[2], in[3]),
                          .saved = FV_SAVE(in[0], in[1], mean, var, kept, in[2], in[3]),
                          .n_recompute_only = 2,
                          .args = &a,
                          .bytes = sizeof a});
}
#endif

/* The running statistics instead of the batch's. */
static FL_T *FL_W(_batch_norm_fixed)(FL_T *const *in, const fl_batch_norm_opts *o, double eps) {
    int ndim = FL_VALUE(in[0])->ndim;
    FL_T *mean = FL_W(_as_channels)(FL_OF(o->mean), ndim);
    FL_T *var = FL_W(_as_channels)(FL_OF(o->var), ndim);
    FL_T *scale = MUL(FL_W(rsqrt)(ADD(var, CONST(eps))), in[1]);
    FL_T *y = ADD(MUL(SUB(in[0], mean), scale), in[2]);
    if (!FL_VALUE(in[3])->weak) y = ADD(y, in[3]);
    return o->relu ? FL_W(relu)(y) : y;
}

/* add: NULL, or what is added */
static FL_T *FL_W(_batch_norm)(FL_T *x, FL_T *weight, FL_T *bias, FL_T *add, fl_batch_norm_opts o) {
    if (!FL_W(_channels_fit)("fl_batch_norm", x, weight, bias) ||
        !fl__batch_norm_fits(FL_VALUE(x), &o))
        return NULL;
    const fl_tensor *t = FL_VALUE(x);
    int64_t channels = t->shape[1], n = channels ? fl_numel(t) / channels : 2;
    fl_batch_norm_args a = {.eps = fl_option(o.eps, 1e-5), .relu = o.relu};
    fl_scope s = fl_scope_begin();
    FL_T *in[] = {x, weight, bias, add}, *y;
    fl_tensor *stats[2] = {NULL};
    bool ok = FL_W(_batch_operands)(in);
    if (ok && o.train) y = FL_W(_batch_normed)(in, a, stats);
    else y = ok ? FL_W(_batch_norm_fixed)(in, &o, a.eps) : NULL;
    ok = y && (!o.train || fl__blend_statistics(&o, stats[0], stats[1], n));
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
    int kept = fl_axis_of("fl_weight_norm", FL_VALUE(v), axis);
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
    if (!FL_W(_widen)(in, 2)) return FL_GIVE(&s, NULL);
    FL_T *y = FL_W(norm)(ADD(SUB(in[0], in[1]), CONST(eps)), p, FL_AXES(-1));
    return FL_GIVE(&s, FL_W(_narrowed)(y, a));
}

/* >>embedding */

static FL_T *FL_W(_without_gradient)(FL_T *x) {
#ifdef FL_ON_VARS
    return fv_detach(x);
#else
    return x;
#endif
}

FL_T *FL_W(embedding)(fl_tensor *index, FL_T *weight, int64_t padding) {
    if (FL_ABSENT("embedding", index) || FL_ABSENT("embedding", weight)) return NULL;
    const fl_tensor *w = FL_VALUE(weight);
    if (w->ndim != 2 || index->ndim == FL_MAX_DIMS)
        return fl_bad("fl_embedding: rows %s of weight %s", FL_SHAPE_TEXT(index),
                       FL_SHAPE_TEXT(w));
    fl_scope s = fl_scope_begin();
    fl_shape shape = fl_shape_of(index);
    shape.dim[shape.ndim++] = w->shape[1];
    fl_tensor *rows = fl_reshape(index, FL_SHAPE(fl_numel(index)));
    FL_T *y = rows ? FL_W(index_select)(weight, 0, rows) : NULL;
    if (y && padding >= 0) {
        FL_T *pads = FL_OF(fl_eq(fl_unsqueeze(rows, 1), fl_int(padding)));
        y = SELECT(pads, FL_W(_without_gradient)(y), y);
    }
    return FL_GIVE(&s, FL_W(reshape)(y, shape));
}

FL_T *FL_W(embedding_bag)(fl_tensor *index, FL_T *weight, bool mean) {
    if (FL_ABSENT("embedding_bag", index) || FL_ABSENT("embedding_bag", weight)) return NULL;
    if (index->ndim < 1)
        return fl_bad("fl_embedding_bag: rows %s, wants [..., k]", FL_SHAPE_TEXT(index));
    fl_scope s = fl_scope_begin();
    FL_T *rows = FL_W(embedding)(index, weight, -1);
    return FL_GIVE(&s, mean ? FL_W(mean)(rows, FL_AXES(-2)) : FL_W(sum)(rows, FL_AXES(-2)));
}

/* >>attention */

#ifdef FL_ON_TENSORS
/* b8 [n, m], true where the key is not after the query */
static fl_tensor *fl__causal(const fl_tensor *q, int64_t n, int64_t m) {
    fl_tensor *all = fl__number_beside(q, 1, FL_B8);
    return all ? fl_tril(fl_expand(all, FL_SHAPE(n, m)), 0) : NULL;
}

static bool fl__attention_fits(const fl_tensor *q, const fl_tensor *k, const fl_tensor *v) {
    bool ok = q->ndim >= 2 && k->ndim >= 2 && v->ndim >= 2 &&
              q->shape[q->ndim - 1] == k->shape[k->ndim - 1] &&
              k->shape[k->ndim - 2] == v->shape[v->ndim - 2];
    return ok || fl_refuse("fl_attention: q %s, k %s, v %s; want [..., n, d], [..., m, d], "
                         "[..., m, e]",
                         FL_SHAPE_TEXT(q), FL_SHAPE_TEXT(k), FL_SHAPE_TEXT(v));
}

/* The batch dims, broadcast, of q, k, v and the mask (NULL: none), all on one family. */
static bool fl__attention_batch(fl_tensor *const *t, fl_shape *batch) {
    for (int i = 0; i < 4; i++) {
        if (!t[i]) continue;
        fl_tensor dims = *t[i];
        dims.ndim = t[i]->ndim > 2 ? t[i]->ndim - 2 : 0;
        if (!fl_same_family("attention", t[0], t[i])) return false;
        if (!fl_broadcast_shape(batch, &dims))
            return fl_refuse("fl_attention: the batch dims of %s and %s do not broadcast",
                           FL_SHAPE_TEXT(t[0]), FL_SHAPE_TEXT(t[i]));
    }
    return true;
}
#endif

/* softmax along the last axis; where all are -inf, 0 */
static FL_T *FL_W(_shares)(FL_T *scores) {
    if (!scores || FL_VALUE(scores)->shape[FL_VALUE(scores)->ndim - 1] == 0) return scores;
    fl_tensor *largest = fl_amax(FL_VALUE(scores), FL_AXES_KEEP(-1));
    FL_T *nothing = FL_OF(fl_isneginf(largest));
    FL_T *y = FL_W(softmax)(SELECT(nothing, CONST(0), scores), -1);
    return SELECT(nothing, CONST(0), y);
}

/* scale q k^T, masked: what is hidden is -inf. in: q, k, v, mask as the record FL_OP_attention has
   them. */
static FL_T *FL_W(_scores)(FL_T *const *in, fl_attention_args a) {
    const fl_tensor *t = FL_VALUE(in[0]), *keys = FL_VALUE(in[1]), *mask = FL_VALUE(in[3]);
    FL_T *y = FL_W(matmul)(MUL(in[0], CONST(a.scale)), FL_W(transpose)(in[1], -1, -2));
    if (a.causal) {
        fl_tensor *past = fl__causal(t, t->shape[t->ndim - 2], keys->shape[keys->ndim - 2]);
        y = SELECT(FL_OF(past), y, CONST(-INFINITY));
    }
    if (mask->dtype == FL_B8) return SELECT(in[3], y, CONST(-INFINITY));
    return mask->weak ? y : ADD(y, in[3]);
}

/* Dropout, always with the same numbers. */
static FL_T *FL_W(_attention_dropped)(FL_T *x, fl_attention_args a) {
    return a.p > 0 ? FL_W(dropout)(x, a.p, &a.rng) : x;
}

/* Gradients of q, k, v and the mask, where they are wanted; differentiable. With p the shares:
   dp = dropped(dy v^T), ds = p (dp - sum p dp). */
static bool FL_W(_attention_grads)(FL_T *const *in, FL_T *dy, fl_attention_args a,
                                   const bool *wanted, FL_T **d) {
    FL_T *p = FL_W(_shares)(FL_W(_scores)(in, a));
    FL_T *kept = p ? FL_W(_attention_dropped)(p, a) : NULL;
    FL_T *dp = FL_W(matmul)(dy, FL_W(transpose)(in[2], -1, -2));
    dp = dp ? FL_W(_attention_dropped)(dp, a) : NULL;
    FL_T *ds = MUL(p, SUB(dp, FL_W(sum)(MUL(p, dp), FL_AXES_KEEP(-1))));
    FL_T *scaled = MUL(ds, CONST(a.scale));
    if (wanted[0]) d[0] = FL_W(matmul)(scaled, in[1]);
    if (wanted[1]) d[1] = FL_W(matmul)(FL_W(transpose)(scaled, -1, -2), in[0]);
    if (wanted[2]) d[2] = FL_W(matmul)(FL_W(transpose)(kept, -1, -2), dy);
    if (wanted[3]) d[3] = ds;
    return scaled && kept;
}

/* What the record takes: all in one dtype that computes and with all batch dims. NULL for a mask
   becomes a number. */
static bool FL_W(_attention_operands)(FL_T **in) {
    bool chooses = in[3] && FL_VALUE(in[3])->dtype == FL_B8;
    fl_shape batch = FL_SCALAR_SHAPE;
    fl_tensor *t[4];
    if (!FL_W(_widen)(in, chooses ? 3 : 4)) return false;
    for (int i = 0; i < 4; i++) t[i] = in[i] ? FL_VALUE(in[i]) : NULL;
    if (!fl__attention_batch(t, &batch)) return false;
    t[3] = t[3] && !chooses ? t[3] : t[0];
    fl_dtype d = fl_result_type(4, t);
    int64_t rows[] = {t[0]->shape[t[0]->ndim - 2], t[1]->shape[t[1]->ndim - 2]};
    for (int i = 0; i < 4; i++) {
        if (!in[i]) continue;
        const fl_tensor *x = FL_VALUE(in[i]);
        fl_shape s = batch;
        s.dim[s.ndim++] = rows[i == 1 || i == 2];
        s.dim[s.ndim++] = i == 3 ? rows[1] : x->shape[x->ndim - 1];
        if (x->dtype != FL_B8) in[i] = FL_W(cast)(in[i], d);
        if (!in[i] || !(in[i] = FL_W(expand)(in[i], s))) return false;
    }
    if (!in[3]) in[3] = CONST(0);
    return in[3] != NULL;
}

#ifdef FL_ON_TENSORS
/* lse: log of the sum of exp(scores), inf for a query that sees no key */
static fl_tensor *fl__attention_lse(fl_tensor *scores) {
    if (!scores) return NULL;
    fl_shape s = fl_shape_of(scores);
    s.dim[s.ndim - 1] = 1;
    if (scores->shape[scores->ndim - 1] == 0)
        return fl_to(fl_full(s, INFINITY, scores->dtype), fl_family_name(scores));
    fl_tensor *lse = fl_logsumexp(scores, FL_AXES_KEEP(-1));
    return SELECT(fl_isneginf(lse), CONST(INFINITY), lse);
}

static bool fl__compose_attention(const fl_call *c, fl_tensor **y) {
    fl_attention_args a = *(const fl_attention_args *)c->args;
    fl_tensor *scores = fl__scores(c->in, a), *p = fl__shares(scores);
    y[0] = p ? fl_matmul(fl__attention_dropped(p, a), c->in[2]) : NULL;
    y[1] = fl__attention_lse(scores);
    return y[0] && y[1];
}

static bool fl__compose_attention_grad(const fl_call *c, fl_tensor **d) {
    const bool wanted[] = {true, true, true, false};
    return fl__attention_grads(c->in, c->in[6], *(const fl_attention_args *)c->args, wanted, d);
}

/* An output with dense rows whose axes lie in memory in the order of t's: heads that are a view
   give results that can be viewed the same way. */
static fl_tensor *fl__attention_out(const fl_tensor *t, int64_t columns) {
    int order[FL_MAX_DIMS];
    fl_shape s = fl_shape_of(t);
    s.dim[s.ndim - 1] = columns;
    fl_tensor *y = fl_call_out(t->family, s, t->dtype);
    fl_axes_by_stride(t, order);
    return order[s.ndim - 1] == s.ndim - 1 ? fl_order_as(y, t) : y;
}

/* y and lse: see FL_OP_attention. in: q, k, v, mask */
static bool fl__run_attention(fl_tensor *const *in, fl_attention_args a, fl_tensor **y) {
    fl_call c = {.op = FL_OP_attention, .n_out = 2, .n_in = 4, .args = &a};
    fl_shape rows = fl_shape_of(in[0]);
    rows.dim[rows.ndim - 1] = 1;
    for (int i = 0; i < 4; i++) c.in[i] = in[i];
    c.out[0] = y[0] = fl__attention_out(in[0], in[2]->shape[in[2]->ndim - 1]);
    c.out[1] = y[1] = fl_call_out(in[0]->family, rows, in[0]->dtype);
    return y[0] && y[1] ? fl__run_fused(&c, fl__compose_attention) : fl_raise() != NULL;
}

/* in: q, k, v, mask, y, lse, dy */
static bool fl__run_attention_grad(fl_tensor *const *in, fl_attention_args a, fl_tensor **d) {
    fl_call c = {.op = FL_OP_attention_grad, .n_out = 3, .n_in = 7, .args = &a};
    for (int i = 0; i < 7; i++) c.in[i] = in[i];
    for (int i = 0; i < 3; i++) {
        c.out[i] = d[i] = fl__attention_out(in[i], in[i]->shape[in[i]->ndim - 1]);
        if (!d[i]) return fl_raise() != NULL;
    }
    return fl__run_fused(&c, fl__compose_attention_grad);
}

/* The same of [3, ..., n, d], whose parts are q, k, v: in: it, mask, y, lse, dy. The slot writes into
   the parts of the gradient; where it cannot, they are stacked. */
static fl_tensor *fl__run_packed_grad(fl_tensor *const *in, fl_attention_args a) {
    fl_call c = {.op = FL_OP_attention_grad, .n_out = 3, .n_in = 7, .args = &a};
    fl_tensor *d = fl_empty_like(in[0]);
    if (!d) return NULL;
    bool direct = d->stride[d->ndim - 1] == 1;
    for (int i = 0; i < 3; i++) {
        c.in[i] = fl_select(in[0], 0, i);
        c.out[i] = fl_select(d, 0, i);
        if (!c.in[i] || !c.out[i]) return NULL;
        direct = direct && !c.out[i]->copied;
    }
    for (int i = 3; i < 7; i++) c.in[i] = in[i - 2];
    if (direct) return fl__run_fused(&c, fl__compose_attention_grad) ? d : NULL;
    return fl__run_attention_grad(c.in, a, c.out) ? fl_stack(c.out, 3, 0) : NULL;
}

static fl_tensor *fl__attended(fl_tensor *const *in, fl_attention_args a) {
    fl_tensor *y[2];
    return fl__run_attention(in, a, y) ? y[0] : NULL;
}
#else
static void fv__attention_back(fl_node *n, fl_var *dy) {
    fl_attention_args a = *(const fl_attention_args *)fv_args(n);
    fl_var *in[7], *d[4] = {NULL};
    fl_tensor *t[7], *dt[3] = {NULL};
    const bool wanted[] = {fv_needs(n, 0), fv_needs(n, 1), fv_needs(n, 2), fv_needs(n, 3)};
    for (int i = 0; i < 6; i++) t[i] = fv_value(in[i] = fv_saved(n, i));
    t[6] = dy->value;
    if (fl_grad_enabled() || wanted[3]) {
        fv__attention_grads(in, dy, a, wanted, d);
    } else if (fl__run_attention_grad(t, a, dt)) {
        for (int i = 0; i < 3; i++) d[i] = fv_const(dt[i]);
    }
    for (int i = 0; i < 4; i++)
        if (wanted[i]) fv_add_grad(n, i, d[i]);
}

static fl_var *fv__attended(fl_var *const *in, fl_attention_args a) {
    fl_tensor *y[2], *t[4];
    for (int i = 0; i < 4; i++) t[i] = in[i]->value;
    if (!fl__run_attention(t, a, y)) return NULL;
    return fv_record_args("attention", y[0], fv__attention_back, FV_IN(in[0], in[1], in[2], in[3]),
                          FV_SAVE(in[0], in[1], in[2], in[3], FV_OUT, fv_const(y[1])), &a,
                          sizeof a);
}

static void fv__packed_back(fl_node *n, fl_var *dy) {
    fl_attention_args a = *(const fl_attention_args *)fv_args(n);
    const bool wanted[] = {true, true, true, fv_needs(n, 1)};
    fl_var *saved[4], *d[4] = {NULL};
    fl_tensor *t[5];
    for (int i = 0; i < 4; i++) t[i] = fv_value(saved[i] = fv_saved(n, i));
    t[4] = dy->value;
    if (fl_error()) return;
    if (!fl_grad_enabled() && !wanted[3]) {
        fv_add_grad(n, 0, fv_const(fl__run_packed_grad(t, a)));
        return;
    }
    fl_var *in[4] = {[3] = saved[1]};
    for (int i = 0; i < 3; i++) in[i] = fv_select(saved[0], 0, i);
    if (!fv__attention_grads(in, dy, a, wanted, d)) return;
    if (fv_needs(n, 0)) fv_add_grad(n, 0, fv_stack(d, 3, 0));
    if (wanted[3]) fv_add_grad(n, 1, d[3]);
}

/* in: the parts of qkv as constants, and the mask */
static fl_var *fv__attended_packed(fl_var *qkv, fl_var *const *in, fl_attention_args a) {
    fl_tensor *y[2], *t[4];
    for (int i = 0; i < 4; i++) t[i] = in[i]->value;
    if (!fl__run_attention(t, a, y)) return NULL;
    return fv_record_args("attention_packed", y[0], fv__packed_back, FV_IN(qkv, in[3]),
                          FV_SAVE(qkv, in[3], FV_OUT, fv_const(y[1])), &a, sizeof a);
}
#endif

#ifdef FL_ON_TENSORS
static fl_attention_args fl__attention_args_of(fl_attention_opts o, const fl_tensor *q,
                                               const fl_tensor *k) {
    fl_attention_args a = {.scale = o.scale, .causal = o.causal, .p = o.dropout};
    int64_t columns = q->shape[q->ndim - 1], m = k->shape[k->ndim - 2];
    if (a.scale == 0) a.scale = 1 / sqrt((double)columns);
    if (a.p > 0) a.rng = fl_rng_take(o.rng, columns ? fl_numel(q) / columns * m : 0);
    return a;
}
#endif

FL_T *FL_W(attention_opt)(FL_T *q, FL_T *k, FL_T *v, FL_T *mask, fl_attention_opts o) {
    if (FL_ABSENT("attention", q) || FL_ABSENT("attention", k) || FL_ABSENT("attention", v) ||
        !fl__attention_fits(FL_VALUE(q), FL_VALUE(k), FL_VALUE(v)))
        return NULL;
    if (!(o.dropout >= 0 && o.dropout <= 1))
        return fl_bad("fl_attention: dropout %g", o.dropout);
    fl_scope s = fl_scope_begin();
    FL_T *in[] = {q, k, v, mask};
    if (!FL_W(_attention_operands)(in)) return FL_GIVE(&s, NULL);
    fl_attention_args a = fl__attention_args_of(o, FL_VALUE(in[0]), FL_VALUE(in[1]));
    return FL_GIVE(&s, FL_W(_narrowed)(FL_W(_attended)(in, a), q));
}

/* By q, k and v of their own. */
static FL_T *FL_W(_attention_of_parts)(FL_T *qkv, FL_T *mask, fl_attention_opts o) {
    FL_T *q = FL_W(select)(qkv, 0, 0), *k = FL_W(select)(qkv, 0, 1), *v = FL_W(select)(qkv, 0, 2);
    return q && k && v ? FL_W(attention_opt)(q, k, v, mask, o) : NULL;
}

FL_T *FL_W(attention_packed)(FL_T *qkv, FL_T *mask, fl_attention_opts o) {
    if (FL_ABSENT("attention_packed", qkv)) return NULL;
    const fl_tensor *t = FL_VALUE(qkv);
    if (t->weak || t->ndim < 3 || t->shape[0] != 3)
        return fl_bad("fl_attention_packed: %s, wants [3, ..., n, d]", FL_SHAPE_TEXT(t));
    fl_scope s = fl_scope_begin();
#ifdef FL_ON_VARS
    fl_var *x = fv__widened(qkv), *in[4] = {[3] = mask};
    bool whole = x && o.dropout >= 0 && o.dropout <= 1;
    for (int i = 0; whole && i < 3; i++) whole = (in[i] = fv_const(fl_select(x->value, 0, i)));
    fl_shape part = whole ? fl_shape_of(in[0]->value) : FL_SCALAR_SHAPE;
    if (whole && !fv__attention_operands(in)) return fv_scope_return(&s, NULL);
    whole = whole && in[0]->value->dtype == x->value->dtype;
    for (int i = 0; whole && i < part.ndim; i++) whole = part.dim[i] == in[0]->value->shape[i];
    if (whole && in[0]->value->ndim == part.ndim) {
        fl_attention_args a = fl__attention_args_of(o, in[0]->value, in[1]->value);
        return fv_scope_return(&s, fv__narrowed(fv__attended_packed(x, in, a), qkv));
    }
#endif
    return FL_GIVE(&s, FL_W(_attention_of_parts)(qkv, mask, o));
}

FL_T *FL_W(attention)(FL_T *q, FL_T *k, FL_T *v, FL_T *mask, bool causal, double scale) {
    fl_attention_opts o = {.causal = causal, .scale = scale};
    return FL_W(attention_opt)(q, k, v, mask, o);
}

/* >>recurrent: a step takes x W_ih^T + b_ih, of all steps in one product, and the state */

#ifdef FL_ON_TENSORS
enum { FL__RNN_TANH, FL__RNN_RELU, FL__GRU, FL__LSTM };
static const int fl__gates[] = {1, 1, 3, 4};
static const char *const fl__rnn_names[] = {"fl_rnn_tanh", "fl_rnn_relu", "fl_gru", "fl_lstm"};
static const char *const fl__cell_names[] = {"fl_rnn_tanh_cell", "fl_rnn_relu_cell", "fl_gru_cell",
                                             "fl_lstm_cell"};

/* x [..., n, in], h [..., n, hidden] and the weights of one cell fit. */
static bool fl__cell_fits(const char *fn, int gates, const fl_tensor *x, const fl_tensor *h,
                          fl_tensor *const w[4]) {
    bool ok = x->ndim >= 2 && h->ndim >= 2 && x->shape[x->ndim - 2] == h->shape[h->ndim - 2];
    int64_t in = ok ? x->shape[x->ndim - 1] : 0, hidden = ok ? h->shape[h->ndim - 1] : 0;
    for (int i = 0; ok && i < 4; i++) {
        int64_t columns = i ? hidden : in;
        if (!w[i] && i > 1) continue;
        ok = w[i]->ndim == (i < 2 ? 2 : 1) && w[i]->shape[0] == gates * hidden &&
             (i > 1 || w[i]->shape[1] == columns);
    }
    return ok || fl_refuse("%s: input %s and state %s do not fit weights %s and %s", fn, FL_SHAPE_TEXT(x),
                   FL_SHAPE_TEXT(h), FL_SHAPE_TEXT(w[0]), FL_SHAPE_TEXT(w[1]));
}
#endif

/* Copies the weights of a cell, as computed in; checks them. */
static bool FL_W(_cell_weights)(const char *fn, int gates, FL_T *x, FL_T *h, FL_T *const *given,
                                FL_T *w[4]) {
    fl_tensor *values[4];
    if (fl_absent(fn, given) || fl_absent(fn, given[0]) || fl_absent(fn, given[1])) return false;
    for (int i = 0; i < 4; i++) {
        w[i] = given[i];
        values[i] = w[i] ? FL_VALUE(w[i]) : NULL;
    }
    return fl__cell_fits(fn, gates, FL_VALUE(x), FL_VALUE(h), values) && FL_W(_widen)(w, 4);
}

/* Gate i along the last axis. */
static FL_T *FL_W(_rnn_gate)(FL_T *x, int i, int64_t hidden) {
    return FL_W(slice)(x, -1, i * hidden, (i + 1) * hidden, 1);
}

/* Gates r, z, n: n = tanh(x_n + r h_n), h' = n + z (h - n). */
static FL_T *FL_W(_gru_step)(FL_T *x, FL_T *hw, FL_T *h) {
    int64_t hidden = FL_VALUE(h)->shape[FL_VALUE(h)->ndim - 1];
    FL_T *r = FL_W(sigmoid)(ADD(FL_W(_rnn_gate)(x, 0, hidden), FL_W(_rnn_gate)(hw, 0, hidden)));
    FL_T *z = FL_W(sigmoid)(ADD(FL_W(_rnn_gate)(x, 1, hidden), FL_W(_rnn_gate)(hw, 1, hidden)));
    FL_T *n = TANH(ADD(FL_W(_rnn_gate)(x, 2, hidden), MUL(r, FL_W(_rnn_gate)(hw, 2, hidden))));
    return ADD(n, MUL(z, SUB(h, n)));
}

/* Gates i, f, g, o: c' = f c + i g, h' = o tanh(c'). */
static FL_T *FL_W(_lstm_step)(FL_T *gates, FL_T **c) {
    int64_t hidden = FL_VALUE(*c)->shape[FL_VALUE(*c)->ndim - 1];
    FL_T *i = FL_W(sigmoid)(FL_W(_rnn_gate)(gates, 0, hidden));
    FL_T *f = FL_W(sigmoid)(FL_W(_rnn_gate)(gates, 1, hidden));
    FL_T *g = TANH(FL_W(_rnn_gate)(gates, 2, hidden));
    FL_T *o = FL_W(sigmoid)(FL_W(_rnn_gate)(gates, 3, hidden));
    *c = ADD(MUL(f, *c), MUL(i, g));
    return MUL(o, TANH(*c));
}

/* The next state h; *c is the LSTM's cell. x is projected. */
static FL_T *FL_W(_rnn_step)(int kind, FL_T *x, FL_T *h, FL_T **c, FL_T *const w[4]) {
    FL_T *hw = FL_W(linear)(h, w[1], w[3]);
    if (!x || !hw) return NULL;
    if (kind == FL__GRU) return FL_W(_gru_step)(x, hw, h);
    FL_T *sum = ADD(x, hw);
    if (kind == FL__LSTM) return FL_W(_lstm_step)(sum, c);
    return kind == FL__RNN_RELU ? FL_W(relu)(sum) : TANH(sum);
}

static FL_T *FL_W(_rnn_cell)(int kind, FL_T *x, FL_T *h, FL_T *c, FL_T *const *given,
                             FL_T **c_out) {
    FL_T *w[4], *state[] = {x, h, c};
    const char *fn = fl__cell_names[kind];
    if (fl_absent(fn, x) || fl_absent(fn, h)) return NULL;
    if (kind == FL__LSTM && !fl_same_shape(FL_VALUE(h), FL_VALUE(c)))
        return fl_bad("%s: states %s and %s", fn, FL_SHAPE_TEXT(FL_VALUE(h)),
                       FL_SHAPE_TEXT(FL_VALUE(c)));
    fl_scope s = fl_scope_begin();
    if (!FL_W(_cell_weights)(fn, fl__gates[kind], x, h, given, w) || !FL_W(_widen)(state, 3))
        return FL_GIVE(&s, NULL);
    FL_T *y = FL_W(_rnn_step)(kind, FL_W(linear)(state[0], w[0], w[2]), state[1], &state[2], w);
    if (!(y = FL_W(_narrowed)(y, h))) return FL_GIVE(&s, NULL);
    if (c_out && !(*c_out = FL_PROMOTE(&s, FL_W(_narrowed)(state[2], c)))) return FL_GIVE(&s, NULL);
    return FL_GIVE(&s, y);
}

FL_T *FL_W(rnn_tanh_cell)(FL_T *x, FL_T *h, FL_T *const w[4]) {
    return FL_W(_rnn_cell)(FL__RNN_TANH, x, h, NULL, w, NULL);
}

FL_T *FL_W(rnn_relu_cell)(FL_T *x, FL_T *h, FL_T *const w[4]) {
    return FL_W(_rnn_cell)(FL__RNN_RELU, x, h, NULL, w, NULL);
}

FL_T *FL_W(gru_cell)(FL_T *x, FL_T *h, FL_T *const w[4]) {
    return FL_W(_rnn_cell)(FL__GRU, x, h, NULL, w, NULL);
}

FL_T *FL_W(lstm_cell)(FL_T *x, FL_T *h, FL_T *c, FL_T *const w[4], FL_T **c_out) {
    if (FL_ABSENT("lstm_cell", c)) return NULL;
    return FL_W(_rnn_cell)(FL__LSTM, x, h, c, w, c_out);
}

/* Joins n parts along axis 0, eight at a time; the list is overwritten. */
static FL_T *FL_W(_rnn_joined)(FL_T **part, int64_t n) {
    while (n > 1) {
        int64_t to = 0;
        for (int64_t i = 0; i < n; i += 8, to++) {
            int count = n - i < 8 ? (int)(n - i) : 8;
            part[to] = FL_W(concat)(part + i, count, 0);
            if (!part[to]) return NULL;
        }
        n = to;
    }
    return part[0];
}

/* One layer in one direction over x [steps, n, in]; *h, *c [n, hidden] are the state. */
static FL_T *FL_W(_rnn_way)(int kind, FL_T *x, FL_T **h, FL_T **c, FL_T *const *given, bool back) {
    FL_T *w[4], *y = NULL;
    const char *fn = fl__rnn_names[kind];
    if (!FL_W(_cell_weights)(fn, fl__gates[kind], x, *h, given, w)) return NULL;
    int64_t steps = FL_VALUE(x)->shape[0];
    FL_T **out = fl__alloc((size_t)steps * sizeof *out);
    if (!out) return fl_bad("%s: out of memory for %lld steps", fn, (long long)steps);
    FL_T *projected = FL_W(linear)(x, w[0], w[2]);
    for (int64_t i = 0; *h && projected && i < steps; i++) {
        int64_t t = back ? steps - 1 - i : i;
        *h = FL_W(_rnn_step)(kind, FL_W(select)(projected, 0, t), *h, c, w);
        out[t] = FL_W(unsqueeze)(*h, 0);
        if (!out[t]) *h = NULL;
    }
    if (*h && projected) y = FL_W(_rnn_joined)(out, steps);
    fl__free(out);
    return y;
}

/* state: h0 and, of an LSTM, c0, [layers * ways, n, hidden]; becomes the last states. */
static FL_T *FL_W(_rnn_layers)(int kind, FL_T *x, FL_T **state, FL_T *const *w, int layers,
                               int ways) {
    int count = layers * ways, states = kind == FL__LSTM ? 2 : 1;
    FL_T **last = fl__alloc((size_t)(count * states) * sizeof *last);
    if (!last) return fl_bad("%s: out of memory for %d layers", fl__rnn_names[kind], layers);
    for (int i = 0; x && i < count; i += ways) {
        FL_T *side[2] = {0};
        for (int k = 0; k < ways; k++) {
            FL_T *h = FL_W(select)(state[0], 0, i + k);
            FL_T *c = states > 1 ? FL_W(select)(state[1], 0, i + k) : NULL;
            if (h && (c || states == 1))
                side[k] = FL_W(_rnn_way)(kind, x, &h, &c, w + 4 * (i + k), k == 1);
            last[i + k] = side[k] ? FL_W(unsqueeze)(h, 0) : NULL;
            if (states > 1) last[count + i + k] = side[k] ? FL_W(unsqueeze)(c, 0) : NULL;
        }
        bool ok = side[0] && (ways == 1 || side[1]);
        x = !ok ? NULL : ways == 1 ? side[0] : FL_W(concat)(side, 2, -1);
    }
    for (int k = 0; k < states; k++)
        state[k] = x ? FL_W(_rnn_joined)(last + k * count, count) : NULL;
    fl__free(last);
    return x;
}

#ifdef FL_ON_TENSORS
/* x [steps, n, in] with steps > 0, and a state [count, n, hidden] */
static bool fl__sequence_fits(int kind, const fl_tensor *x, const fl_tensor *state, int layers,
                              int ways) {
    bool ok = x->ndim == 3 && x->shape[0] > 0 && state->ndim == 3 && layers > 0 &&
              layers <= INT_MAX / 16 && state->shape[0] == (int64_t)layers * ways;
    return ok || fl_refuse("%s: input %s and state %s of %d layers in %d directions", fl__rnn_names[kind],
                   FL_SHAPE_TEXT(x), FL_SHAPE_TEXT(state), layers, ways);
}
#endif

static FL_T *FL_W(_recurrent)(int kind, FL_T *x, FL_T *const *given, FL_T *const *w, int layers,
                              bool bidirectional, FL_T **h_out, FL_T **c_out) {
    int states = kind == FL__LSTM ? 2 : 1, ways = bidirectional ? 2 : 1;
    const char *fn = fl__rnn_names[kind];
    if (fl_absent(fn, x) || fl_absent(fn, w)) return NULL;
    FL_T *in[] = {x, given[0], given[1]}, **out[] = {h_out, c_out};
    for (int k = 0; k < states; k++)
        if (fl_absent(fn, given[k]) ||
            !fl__sequence_fits(kind, FL_VALUE(x), FL_VALUE(given[k]), layers, ways))
            return NULL;
    fl_scope s = fl_scope_begin();
    if (!FL_W(_widen)(in, 3)) return FL_GIVE(&s, NULL);
    FL_T *y = FL_W(_rnn_layers)(kind, in[0], in + 1, w, layers, ways);
    for (int k = 0; y && k < states; k++) {
        FL_T *last = in[1 + k] ? FL_W(_narrowed)(in[1 + k], given[k]) : NULL;
        if (!last) return FL_GIVE(&s, NULL);
        if (out[k] && !(*out[k] = FL_PROMOTE(&s, last))) return FL_GIVE(&s, NULL);
    }
    return FL_GIVE(&s, FL_W(_narrowed)(y, x));
}

FL_T *FL_W(rnn_tanh)(FL_T *x, FL_T *h0, FL_T *const *w, int layers, bool bidirectional,
                     FL_T **h_out) {
    return FL_W(_recurrent)(FL__RNN_TANH, x, (FL_T *[]){h0, NULL}, w, layers, bidirectional, h_out,
                            NULL);
}

FL_T *FL_W(rnn_relu)(FL_T *x, FL_T *h0, FL_T *const *w, int layers, bool bidirectional,
                     FL_T **h_out) {
    return FL_W(_recurrent)(FL__RNN_RELU, x, (FL_T *[]){h0, NULL}, w, layers, bidirectional, h_out,
                            NULL);
}

FL_T *FL_W(gru)(FL_T *x, FL_T *h0, FL_T *const *w, int layers, bool bidirectional, FL_T **h_out) {
    return FL_W(_recurrent)(FL__GRU, x, (FL_T *[]){h0, NULL}, w, layers, bidirectional, h_out,
                            NULL);
}

FL_T *FL_W(lstm)(FL_T *x, FL_T *h0, FL_T *c0, FL_T *const *w, int layers, bool bidirectional,
                 FL_T **h_out, FL_T **c_out) {
    return FL_W(_recurrent)(FL__LSTM, x, (FL_T *[]){h0, c0}, w, layers, bidirectional, h_out,
                            c_out);
}

#endif
/* MIT licence: see LICENSE. */
