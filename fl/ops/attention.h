/* fl/ops/attention.h - scaled dot-product attention

   y = dropout(softmax(cap(scale q k^T) + mask)) v,  cap(s) = softcap tanh(s / softcap) or s

   Records (fl_attention_args), with the same batch dims: q, k, v, y and their gradients of one dtype,
   lse and a float mask of its wide one.
     attention       q [..., n, d], k [..., m, d], v [..., m, e], mask [..., n, m] (b8: true takes part;
                     a float is added; a number: no mask) -> y [..., n, e], lse [..., n, 1] = log of
                     the sum of exp(scores), inf for a query that sees no key
     attention_grad  the same, y, lse, dy -> dq, dk, dv
   Rows of the outputs are dense. Query heads that share a key are an axis along which k and v step by 0. */
#ifndef FL_T
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_ATTENTION_H
#define FL_OPS_ATTENTION_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_attention_args {
    double scale;
    bool causal;            /* query i, which stands at i + offset, sees the keys up to there */
    int64_t offset, window; /* window > 0: it sees keys fewer than this many places away */
    double softcap;         /* 0: none */
    double p;               /* dropout of the softmax, before it meets v: element i as in fl_dropout_args */
    fl_rng rng;
} fl_attention_args;

typedef struct fl_attention_opts {
    fl_named _positional;
    fl_tensor *mask; /* broadcasts to [..., n, m]: b8 (true takes part) or a float that is added */
    bool causal;     /* query i sees keys 0 to offset + i */
    int64_t offset;  /* place of query 0 among the keys, as after a cache of that many */
    int64_t window;  /* query i sees keys fewer than this many places from offset + i, itself one of
                        them (Mistral's sliding window); 0: all */
    double softcap;  /* scaled scores become softcap tanh(score / softcap) (Gemma 2); 0: none */
    double scale;    /* 0: 1 / sqrt(d) */
    double dropout;  /* probability with which one of the softmax's results becomes 0; the others
                        grow by 1 / (1 - dropout) */
    fl_rng *rng;     /* NULL: the process's */
    char _end;
} fl_attention_opts;
/* The same with a variable as mask, which may want a gradient. */
typedef struct fv_attention_opts {
    fl_named _positional;
    fl_var *mask;
    bool causal;
    int64_t offset, window;
    double softcap, scale, dropout;
    fl_rng *rng;
    char _end;
} fv_attention_opts;
/* softmax(scale q k^T, masked) v: q [..., n, d], k [..., m, d], v [..., m, e] -> [..., n, e]. A query
   that sees no key gives 0. If k and v have fewer heads (axis -3) than q, more than one and a divisor,
   each serves as many neighbours of q's (grouped queries, PyTorch's enable_gqa). The record saves one
   number per query, not the scores; from the cpu's slot NaN and infinities among the values of keys
   that causal or window hide may stay unseen. */
#define fl_attention(...) FL__ATTENTION(fl_, __VA_ARGS__, ._end = 0)
#define fv_attention(...) FL__ATTENTION(fv_, __VA_ARGS__, ._end = 0)
#define FL__ATTENTION(p, q, k, v, ...) p##attention_opt(q, k, v, (p##attention_opts){__VA_ARGS__})
FL_API fl_tensor *fl_attention_opt(fl_tensor *q, fl_tensor *k, fl_tensor *v, fl_attention_opts o);
FL_API fl_var *fv_attention_opt(fl_var *q, fl_var *k, fl_var *v, fv_attention_opts o);
/* The same of qkv [3, ..., n, d], whose parts are q, k and v: so is the gradient, in one piece. */
#define fl_attention_packed(...) FL__ATTENTION_PACKED(fl_, __VA_ARGS__, ._end = 0)
#define fv_attention_packed(...) FL__ATTENTION_PACKED(fv_, __VA_ARGS__, ._end = 0)
#define FL__ATTENTION_PACKED(p, qkv, ...) p##attention_packed_opt(qkv, (p##attention_opts){__VA_ARGS__})
FL_API fl_tensor *fl_attention_packed_opt(fl_tensor *qkv, fl_attention_opts o);
FL_API fl_var *fv_attention_packed_opt(fl_var *qkv, fv_attention_opts o);


FL_DATA fl_op fl_op_attention, fl_op_attention_grad;
FL_PRIVATE void fl__register_attention(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_ATTENTION_H */

#if defined(FL_IMPL_ONLY_OPS_ATTENTION) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_ATTENTION_IMPL
#define FL_OPS_ATTENTION_IMPL
#include "../../fl_autograd.h"
#include "copy.h"
#include "elementwise.h"
#include "linear.h"
#include "move.h"
#include "random.h"
#include "reduce.h"
#include "softmax.h"
#include "view.h"
#include <float.h>
#include <math.h>
#define FL_TEXT "attention.h"
#include "expand.h"

FL_DATA_DEFINED fl_op fl_op_attention, fl_op_attention_grad;

/* q k^T, and the weights times v; in the gradient q k^T again, dy v^T, and the products for dq, dk and dv. */
static int64_t fl__attention_macs(const fl_call *c) {
    return (fl_numel(c->in[0]) + fl_numel(c->out[0])) * c->in[1]->shape[c->in[1]->ndim - 2];
}
static int64_t fl__attention_grad_macs(const fl_call *c) {
    const fl_tensor *q = c->in[0], *k = c->in[1], *dy = c->in[c->n_in - 1];
    return (3 * fl_numel(q) + 2 * fl_numel(dy)) * k->shape[k->ndim - 2];
}

FL_PRIVATE void fl__register_attention(void) {
    static const fl_op_info attention = {.name = "attention",
                                         .args_size = sizeof(fl_attention_args),
                                         .contains = "matmul mul add where amax sub exp sum div log tanh",
                                         .compose = fl__compose_attention,
                                         .gradient = fv__attention_back,
                                         .rng_end = offsetof(fl_attention_args, rng) + sizeof(fl_rng),
                                         .macs = fl__attention_macs},
                            attention_grad = {.name = "attention_grad",
                                              .args_size = sizeof(fl_attention_args),
                                              .contains = "matmul mul add where amax sub exp sum div tanh",
                                              .compose = fl__compose_attention_grad,
                                              .rng_end = offsetof(fl_attention_args, rng) +
                                                         sizeof(fl_rng),
                                              .macs = fl__attention_grad_macs};
    fl_op_attention = fl_op_register(&attention);
    fl_op_attention_grad = fl_op_register(&attention_grad);
}

#endif /* FL_OPS_ATTENTION_IMPL */
#endif
#else /* the text: see expand.h */

#ifdef FL_ON_TENSORS
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
static FL_T *FL_W(_probabilities)(FL_T *scores) {
    if (!scores || FL_VALUE(scores)->shape[FL_VALUE(scores)->ndim - 1] == 0) return scores;
    fl_tensor *largest = fl_amax(FL_VALUE(scores), FL_AXES_KEEP(-1));
    FL_T *nothing = FL_OF(fl_isneginf(largest));
    FL_T *y = FL_W(softmax)(SELECT(nothing, CONST(0), scores), -1);
    return SELECT(nothing, CONST(0), y);
}

#ifdef FL_ON_TENSORS
/* b8 [n, m] beside q: the keys that causal and window let each query see. */
static fl_tensor *fl__attention_sight(const fl_tensor *q, int64_t m, const fl_attention_args *a) {
    const int64_t n = q->shape[q->ndim - 2], ahead = a->causal ? 0 : a->window - 1;
    fl_tensor *one = fl_to(fl_full(FL_SCALAR_SHAPE, 1, FL_B8), fl_backend_name(q));
    fl_tensor *sight = one ? fl_tril(fl_expand(one, FL_SHAPE(n, m)), a->offset + ahead) : NULL;
    return sight && a->window ? fl_triu(sight, a->offset - a->window + 1) : sight;
}
#endif

/* scale q k^T, capped. in: q, k, v, mask as the record has them. */
static FL_T *FL_W(_scores)(FL_T *const *in, const fl_attention_args *a) {
    FL_T *y = FL_W(matmul)(MUL(in[0], CONST(a->scale)), FL_W(transpose)(in[1], -1, -2));
    return a->softcap ? MUL(CONST(a->softcap), TANH(DIV(y, CONST(a->softcap)))) : y;
}

/* What the masks leave of them: what is hidden is -inf. */
static FL_T *FL_W(_masked)(FL_T *y, FL_T *const *in, const fl_attention_args *a) {
    const fl_tensor *keys = FL_VALUE(in[1]), *mask = FL_VALUE(in[3]);
    if (a->causal || a->window) {
        fl_tensor *sight = fl__attention_sight(FL_VALUE(in[0]), keys->shape[keys->ndim - 2], a);
        y = SELECT(FL_OF(sight), y, CONST(-INFINITY));
    }
    if (mask->dtype == FL_B8) return SELECT(in[3], y, CONST(-INFINITY));
    return mask->weak ? y : ADD(y, in[3]);
}

/* Dropout, always with the same numbers. */
static FL_T *FL_W(_attention_dropped)(FL_T *x, fl_attention_args a) {
    return a.p > 0 ? FL_W(dropout)(x, a.p, &a.rng) : x;
}

/* Gradients of q, k, v and the mask, where they are wanted; differentiable. With p the probabilities:
   dp = dropped(dy v^T), ds = p (dp - sum p dp), times 1 - (s / softcap)^2 below the cap. */
static bool FL_W(_attention_grads)(FL_T *const *in, FL_T *dy, fl_attention_args a,
                                   const bool *wanted, FL_T **d) {
    FL_T *s = FL_W(_scores)(in, &a), *p = s ? FL_W(_probabilities)(FL_W(_masked)(s, in, &a)) : NULL;
    FL_T *kept = p ? FL_W(_attention_dropped)(p, a) : NULL;
    FL_T *dp = FL_W(matmul)(dy, FL_W(transpose)(in[2], -1, -2));
    dp = dp ? FL_W(_attention_dropped)(dp, a) : NULL;
    FL_T *ds = MUL(p, SUB(dp, FL_W(sum)(MUL(p, dp), FL_AXES_KEEP(-1))));
    FL_T *scaled = MUL(ds, CONST(a.scale)), *t = a.softcap ? DIV(s, CONST(a.softcap)) : NULL;
    if (a.softcap) scaled = MUL(scaled, SUB(CONST(1), MUL(t, t)));
    if (wanted[0]) d[0] = FL_W(matmul)(scaled, in[1]);
    if (wanted[1]) d[1] = FL_W(matmul)(FL_W(transpose)(scaled, -1, -2), in[0]);
    if (wanted[2]) d[2] = FL_W(matmul)(FL_W(transpose)(kept, -1, -2), dy);
    if (wanted[3]) d[3] = ds;
    return scaled && kept;
}

#ifdef FL_ON_TENSORS
/* Half floats stay what they are where all three are of one kind. */
static bool fl__attention_narrow(const fl_tensor *q, const fl_tensor *k, const fl_tensor *v) {
    return fl_dtype_is_float(q->dtype) && fl_is_narrow(q) && k->dtype == q->dtype && v->dtype == q->dtype;
}
#endif

/* What the record takes: all in one dtype (the mask in its wide one), with all batch dims. NULL for a
   mask becomes a number. */
static bool FL_W(_attention_operands)(FL_T **in) {
    bool chooses = in[3] && FL_VALUE(in[3])->dtype == FL_B8;
    bool narrow = fl__attention_narrow(FL_VALUE(in[0]), FL_VALUE(in[1]), FL_VALUE(in[2]));
    fl_shape batch = FL_SCALAR_SHAPE;
    fl_tensor *t[4];
    if (!narrow && !FL_W(_widen)(in, chooses ? 3 : 4)) return false;
    for (int i = 0; i < 4; i++) t[i] = in[i] ? FL_VALUE(in[i]) : NULL;
    if (!fl__attention_batch(t, &batch)) return false;
    t[3] = t[3] && !chooses && !narrow ? t[3] : t[0];
    fl_dtype d = fl_result_type(4, t);
    int64_t rows[] = {t[0]->shape[t[0]->ndim - 2], t[1]->shape[t[1]->ndim - 2]};
    for (int i = 0; i < 4; i++) {
        if (!in[i]) continue;
        const fl_tensor *x = FL_VALUE(in[i]);
        fl_shape s = batch;
        s.dim[s.ndim++] = rows[i == 1 || i == 2];
        s.dim[s.ndim++] = i == 3 ? rows[1] : x->shape[x->ndim - 1];
        if (x->dtype != FL_B8) in[i] = FL_W(cast)(in[i], i == 3 ? fl_dtype_wide(d) : d);
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
        return fl_to(fl_full(s, INFINITY, scores->dtype), fl_backend_name(scores));
    fl_tensor *lse = fl_logsumexp(scores, FL_AXES_KEEP(-1));
    return SELECT(fl_isneginf(lse), CONST(INFINITY), lse);
}

static bool fl__compose_attention(const fl_call *c, fl_tensor **y) {
    fl_attention_args a = *(const fl_attention_args *)c->args;
    fl_tensor *scores = fl__scores(c->in, &a);
    scores = scores ? fl__masked(scores, c->in, &a) : NULL;
    fl_tensor *p = fl__probabilities(scores);
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
    fl_tensor *y = fl_out_on(t->family, s, t->dtype);
    fl_axes_by_stride(t, order);
    return order[s.ndim - 1] == s.ndim - 1 ? fl_out_order_as(y, t) : y;
}

/* y and lse. in: q, k, v, mask */
static bool fl__run_attention(fl_tensor *const *in, fl_attention_args a, fl_tensor **y) {
    fl_shape rows = fl_shape_of(in[0]);
    rows.dim[rows.ndim - 1] = 1;
    y[0] = fl__attention_out(in[0], in[2]->shape[in[2]->ndim - 1]);
    y[1] = fl_out_on(in[0]->family, rows, fl_dtype_wide(in[0]->dtype));
    fl_call c = {.op = fl_op_attention, .n_out = 2, .n_in = 4, .out = {y[0], y[1]},
                 .in = {in[0], in[1], in[2], in[3]}, .args = &a};
    return (y[0] && y[1] && fl_call_run(&c)) || fl_raise();
}

#else
/* in: q, k, v, mask, y, lse, dy */
static bool fv__run_attention_grad(fl_tensor *const *in, fl_attention_args a, fl_tensor **d) {
    fl_call c = {.op = fl_op_attention_grad, .n_out = 3, .n_in = 7, .args = &a};
    for (int i = 0; i < 7; i++) c.in[i] = in[i];
    for (int i = 0; i < 3; i++) {
        c.out[i] = d[i] = fl__attention_out(in[i], in[i]->shape[in[i]->ndim - 1]);
        if (!d[i]) return fl_raise();
    }
    return fl_call_run(&c) || fl_raise();
}

/* The same of [3, ..., n, d], whose parts are q, k, v: in: it, mask, y, lse, dy. The slot writes into
   the parts of the gradient; where it cannot, they are stacked. */
static fl_tensor *fv__run_packed_grad(fl_tensor *const *in, fl_attention_args a) {
    fl_call c = {.op = fl_op_attention_grad, .n_out = 3, .n_in = 7, .args = &a};
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
    if (direct) return fl_call_run(&c) ? d : fl_raise();
    return fv__run_attention_grad(c.in, a, c.out) ? fl_stack(c.out, 3, 0) : NULL;
}

/* Composed, of a record whose operands may be narrow. */
static bool fv__attention_grads_of(fl_var **in, fl_var *dy, fl_attention_args a, const bool *wanted,
                                   fl_var **d) {
    const fl_dtype given = dy ? dy->value->dtype : FL_F32;
    if (!dy || !fv__widen(in, 3) || !fv__widen(&dy, 1) || !fv__attention_grads(in, dy, a, wanted, d))
        return false;
    for (int i = 0; i < 3; i++) d[i] = fv__halved(d[i], given);
    return true;
}

static void fv__attention_back(fl_node *n, fl_var *dy) {
    fl_attention_args a = *(const fl_attention_args *)fv_args(n);
    fl_var *in[7], *d[4] = {NULL};
    fl_tensor *t[7], *dt[3] = {NULL};
    const bool wanted[] = {fv_needs(n, 0), fv_needs(n, 1), fv_needs(n, 2), fv_needs(n, 3)};
    for (int i = 0; i < 6; i++) t[i] = fv_value(in[i] = fv_saved(n, i));
    t[6] = dy->value;
    if (fl_grad_enabled() || wanted[3]) {
        fv__attention_grads_of(in, dy, a, wanted, d);
    } else if (fv__run_attention_grad(t, a, dt)) {
        for (int i = 0; i < 3; i++) d[i] = fv_const(dt[i]);
    }
    for (int i = 0; i < 4; i++)
        if (wanted[i]) fv_add_grad(n, i, d[i]);
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
        fv_add_grad(n, 0, fv_const(fv__run_packed_grad(t, a)));
        return;
    }
    fl_var *in[4] = {[3] = saved[1]};
    for (int i = 0; i < 3; i++) in[i] = fv_select(saved[0], 0, i);
    if (!in[0] || !in[1] || !in[2] || !fv__attention_grads_of(in, dy, a, wanted, d)) return;
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

static fl_attention_args FL_W(_attention_args)(FL_W(attention_opts) o, const fl_tensor *q,
                                               const fl_tensor *k) {
    fl_attention_args a = {.scale = o.scale, .causal = o.causal, .offset = o.offset,
                           .window = o.window, .softcap = o.softcap, .p = o.dropout};
    int64_t columns = q->shape[q->ndim - 1], m = k->shape[k->ndim - 2];
    if (a.scale == 0) a.scale = 1 / sqrt((double)columns);
    if (a.p > 0) a.rng = fl_rng_take(o.rng, columns ? fl_numel(q) / columns * m : 0);
    return a;
}

#ifdef FL_ON_TENSORS
/* How many of q's heads share one of k's and v's; 1: as many as there are, or they broadcast. */
static int64_t fl__attention_groups(const fl_tensor *q, const fl_tensor *k, const fl_tensor *v) {
    if (q->ndim < 3 || k->ndim < 3 || v->ndim < 3) return 1;
    const int64_t heads = q->shape[q->ndim - 3], keys = k->shape[k->ndim - 3];
    if (keys < 2 || keys >= heads || heads % keys || v->shape[v->ndim - 3] != keys) return 1;
    return q->ndim < FL_MAX_DIMS && k->ndim < FL_MAX_DIMS && v->ndim < FL_MAX_DIMS ? heads / keys : 1;
}

static bool fl__attention_settings_ok(double dropout, int64_t offset, int64_t window, double softcap) {
    if (!(dropout >= 0 && dropout <= 1)) return fl_refuse("fl_attention: dropout %g", dropout);
    return (offset >= 0 && window >= 0 && softcap >= 0 && softcap <= DBL_MAX) ||
           fl_refuse("fl_attention: offset %lld, window %lld, softcap %g", (long long)offset,
                     (long long)window, softcap);
}
#endif

/* q's heads as [keys' heads, groups]; k and v serve all of a group by a stride of 0. */
static FL_T *FL_W(_attention_grouped)(FL_T *q, FL_T *k, FL_T *v, FL_W(attention_opts) o, int64_t groups) {
    const fl_tensor *heads = FL_VALUE(q), *mask = o.mask ? FL_VALUE(o.mask) : NULL;
    const fl_shape parts = FL_SHAPE(heads->shape[heads->ndim - 3] / groups, groups);
    const bool each = mask && mask->ndim > 2 && mask->shape[mask->ndim - 3] == parts.dim[0] * groups;
    if (each) o.mask = FL_W(unflatten)(o.mask, -3, parts);
    else if (mask && mask->ndim > 2) o.mask = FL_W(unsqueeze)(o.mask, -3);
    FL_T *parted = FL_W(unflatten)(q, -3, parts), *y = NULL;
    if (!mask == !o.mask && parted)
        y = FL_W(attention_opt)(parted, FL_W(unsqueeze)(k, -3), FL_W(unsqueeze)(v, -3), o);
    return y ? FL_W(flatten)(y, -4, -3) : NULL;
}

FL_T *FL_W(attention_opt)(FL_T *q, FL_T *k, FL_T *v, FL_W(attention_opts) o) {
    if (FL_ABSENT("attention", q) || FL_ABSENT("attention", k) || FL_ABSENT("attention", v) ||
        !fl__attention_fits(FL_VALUE(q), FL_VALUE(k), FL_VALUE(v)) ||
        !fl__attention_settings_ok(o.dropout, o.offset, o.window, o.softcap))
        return NULL;
    const int64_t groups = fl__attention_groups(FL_VALUE(q), FL_VALUE(k), FL_VALUE(v));
    if (groups > 1) {
        fl_scope grouped = fl_scope_begin();
        return FL_GIVE(&grouped, FL_W(_attention_grouped)(q, k, v, o, groups));
    }
    fl_scope s = fl_scope_begin();
    FL_T *in[] = {q, k, v, o.mask};
    if (!FL_AUTOCAST(fl_op_attention, in, 4)) return FL_GIVE(&s, NULL);
    q = in[0];
    if (!FL_W(_attention_operands)(in)) return FL_GIVE(&s, NULL);
    fl_attention_args a = FL_W(_attention_args)(o, FL_VALUE(in[0]), FL_VALUE(in[1]));
    fl_tensor *y[2], *t[4];
    for (int i = 0; i < 4; i++) t[i] = FL_VALUE(in[i]);
    if (!fl__run_attention(t, a, y)) return FL_GIVE(&s, NULL);
#ifdef FL_ON_TENSORS
    fl_tensor *result = y[0];
#else
    fl_var *result = fv_record_op(fl_op_attention, y[0], FV_IN(in[0], in[1], in[2], in[3]),
                                  FV_SAVE(in[0], in[1], in[2], in[3], FV_OUT, fv_const(y[1])), &a);
#endif
    return FL_GIVE(&s, FL_W(_narrowed)(result, q));
}

FL_T *FL_W(attention_packed_opt)(FL_T *qkv, FL_W(attention_opts) o) {
    if (FL_ABSENT("attention_packed", qkv)) return NULL;
    const fl_tensor *t = FL_VALUE(qkv);
    if (t->weak || t->ndim < 3 || t->shape[0] != 3)
        return fl_bad("fl_attention_packed: %s, wants [3, ..., n, d]", FL_SHAPE_TEXT(t));
    fl_scope s = fl_scope_begin();
    if (!FL_AUTOCAST(fl_op_attention, &qkv, 1)) return FL_GIVE(&s, NULL);
#ifdef FL_ON_VARS
    /* One record reads qkv whole if its parts are what the record takes. */
    fl_var *x = FL_W(_floating)(qkv), *in[4] = {[3] = o.mask};
    bool whole = x && fl__attention_settings_ok(o.dropout, o.offset, o.window, o.softcap);
    if (!whole) return fv_scope_return(&s, NULL);
    for (int i = 0; whole && i < 3; i++) whole = (in[i] = fv_const(fl_select(x->value, 0, i)));
    fl_shape part = whole ? fl_shape_of(in[0]->value) : FL_SCALAR_SHAPE;
    if (whole && !fv__attention_operands(in)) return fv_scope_return(&s, NULL);
    if (whole && in[0]->value->dtype == x->value->dtype && fl_shape_is(in[0]->value, part)) {
        fl_attention_args a = fv__attention_args(o, in[0]->value, in[1]->value);
        return fv_scope_return(&s, FL_W(_narrowed)(fv__attended_packed(x, in, a), qkv));
    }
#endif
    FL_T *q = FL_W(select)(qkv, 0, 0), *k = FL_W(select)(qkv, 0, 1), *v = FL_W(select)(qkv, 0, 2);
    return FL_GIVE(&s, q && k && v ? FL_W(attention_opt)(q, k, v, o) : NULL);
}

#endif
/* MIT licence: see LICENSE. */
