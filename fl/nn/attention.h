/* attention.h - multi-head attention, and the keys and values that it keeps from step to step */
#ifndef FL_NN_ATTENTION_H
#define FL_NN_ATTENTION_H
#include "../ops/position.h"
#include "init.h"
#include "layers.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_nn_attention_opts {
    fl_opts_guard guard_;
    double dropout;     /* of the weights that the softmax gives */
    bool causal;        /* step i sees steps 0 to i, and what a cache holds before them */
    bool no_bias;
    bool in_bias;       /* with no_bias: q, k and v have theirs all the same (Qwen2) */
    bool cross;         /* keys and values are a memory's, the same at each step: a cache keeps the first */
    int64_t n_kv_heads; /* heads of keys and values, a divisor of heads that share them; 0 -> heads */
    int64_t window;     /* a step sees steps fewer than this many away; 0 -> all */
    double softcap, scale; /* see fl_attention; 0 -> none, 1 / sqrt(dim / heads) (T5: 1) */
    bool rotary;        /* turns queries and keys by their places, with `rope`: see fl_rotary */
    fl_rotary_opts rope;
    int64_t relative;   /* c > 0: a learned row of dim / heads numbers for each distance from -c + 1 to c - 1,
                           times the query, is added to the scores: relative_embedding [2 c - 1, dim / heads],
                           shared by the heads (Flashlight's, which has c = bptt) */
    int64_t buckets;    /* > 0: a learned bias for each head and bucket of distances is added to the scores,
                           as T5's: relative_attention_bias [buckets, heads]; both ways unless causal */
    int64_t max_distance; /* of buckets, 0 -> 128 */
    int64_t kdim, vdim; /* numbers of k's and v's steps; 0 -> dim. With one q_proj_weight [dim, dim],
                           k_proj_weight [., kdim] and v_proj_weight [., vdim] replace in_proj_weight */
    bool bias_kv;       /* one more key and value, bias_k and bias_v [1, 1, dim], which each step sees */
    bool zero_attn;     /* one more key and value, of zeros, which each step sees */
    bool alibi;         /* distances times the head's slope are taken from the scores: see fl_alibi */
    fl_dtype dtype;
    fl_rng *rng;
    char _end;
} fl_nn_attention_opts;
/* Multi-head attention as nn.MultiheadAttention(batch_first=True): in_proj_weight [3 dim, dim] and
   in_proj_bias [3 dim] give q, k and v, each of `heads` parts of dim / heads numbers; fl_attention
   of each; out_proj is a linear layer of the parts side by side. With n_kv_heads the k's and v's thirds are
   n_kv_heads dim / heads rows. Inputs (the result has the first's shape):
     x [n, t, dim]                          attends to itself
     x, mask                                the same; a mask as fl_attention takes, with the heads'
                                            axis: it broadcasts to [n, heads, t, t]
     q [n, t, dim], k [n, s, kdim],         q attends to k
     v [n, s, vdim]
     q, k, v, mask
   A mask that is a number (fv_num(0)) is ignored. With a cache t keys become those before them and t. A mask
   says nothing of the keys that bias_kv and zero_attn add. */
#define fl_nn_attention(...) FL_NN__ATTENTION(__VA_ARGS__, ._end = 0)
#define FL_NN__ATTENTION(dim, heads, ...) \
    fl_nn_attention_opt(dim, heads, FL_LITERAL(fl_nn_attention_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_attention_opt(int64_t dim, int64_t heads, fl_nn_attention_opts o);

/* A cache holds the keys and values of all attentions in a tree, for sequences that grow: each step is
   given what is new, at first several places perhaps (a prompt), then one at a time. The tree is not
   changed, so that several caches, and threads, may serve one tree.

     fl_nn_cache *cache = fl_nn_cache_new(decoder, n, 512);
     fl_var *y = fl_nn_forward_cached(decoder, FL_VARS(prompt, memory), cache).v[0];   // places 0 to t - 1
     y = fl_nn_forward_cached(decoder, FL_VARS(next, memory), cache).v[0];             // place t ...
     fl_nn_cache_free(cache); */
typedef struct fl_nn_cache fl_nn_cache;
typedef struct fl_nn_cache_opts {
    fl_opts_guard guard_;
    fl_dtype dtype; /* of what is kept; 0 -> each attention's */
    char _end;
} fl_nn_cache_opts;
/* Space for n sequences of at most `length` places, in each attention of m: twice [n, kv heads, length,
   dim / heads]. It refers to m, which must live as long. NULL after an error. */
#define fl_nn_cache_new(...) FL_NN__CACHE_NEW(__VA_ARGS__, ._end = 0)
#define FL_NN__CACHE_NEW(m, n, length, ...) \
    fl_nn_cache_new_opt(m, n, length, FL_LITERAL(fl_nn_cache_opts, __VA_ARGS__))
FL_API fl_nn_cache *fl_nn_cache_new_opt(fl_nn_module *m, int64_t n, int64_t length, fl_nn_cache_opts o);
FL_API void fl_nn_cache_free(fl_nn_cache *c); /* NULL is fine */
/* Runs m, the cache's tree or a part of it, on inputs whose places follow those before; nothing is recorded
   for backward. Attentions write their keys and values behind those they have, cross ones compute theirs
   at place 0. A cache that is too full for the step is an error; it stays as it was then, after any error. */
FL_API fl_vars fl_nn_forward_cached(fl_nn_module *m, fl_vars in, fl_nn_cache *c);
/* Places that it holds now: where the next step begins. */
FL_API int64_t fl_nn_cache_position(const fl_nn_cache *c);
/* For forward functions: the place of a sequence's first step in the call of this thread, 0 without a
   cache. */
FL_API int64_t fl_nn_cached_position(void);
/* Forgets all but the first `position` places (speculation that failed); 0: all, and the memory. False after
   an error: it does not hold as many. */
FL_API bool fl_nn_cache_rewind(fl_nn_cache *c, int64_t position);
FL_API bool fl_nn_cache_reset(fl_nn_cache *c);
/* Sequence i becomes what sequence index[i] was, i64 [n] (beam search); for the time of the call there are
   two caches. False after an error, and nothing has changed. */
FL_API bool fl_nn_cache_reorder(fl_nn_cache *c, fl_tensor *index);

#ifdef __cplusplus
}
#endif
#endif /* FL_NN_ATTENTION_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_NN_ATTENTION) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_NN_ATTENTION_IMPL
#define FL_NN_ATTENTION_IMPL
#include "../ops/attention.h"
#include "../ops/copy.h"
#include "../ops/create.h"
#include "../ops/elementwise.h"
#include "../ops/embedding.h"
#include "../ops/index.h"
#include "../ops/linear.h"
#include "../ops/random.h"
#include "../ops/view.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

typedef struct fl__nn_attention {
    int64_t dim, heads, kv, columns; /* kv: heads of keys; columns of a head */
    fl_nn_attention_opts o;
} fl__nn_attention;

/* ---- caches ---- */

typedef struct fl__nn_cached {
    const fl_nn_module *m;
    fl_tensor *k, *v; /* [n, kv, length, columns]; of a cross one NULL before it ran */
} fl__nn_cached;

struct fl_nn_cache {
    fl__nn_cached *entry;
    int64_t n_entry, cap, n, length, position;
    int64_t step; /* places that the step in progress has written */
    fl_dtype dtype;
};

/* The cache of this thread's step: valid while the flag is set, which scopes take back. */
#define FL__NN_CACHED ((uint64_t)1 << 40)
static _Thread_local fl_nn_cache *fl__nn_cache_in_use;

static fl_nn_cache *fl__nn_cache_now(void) {
    return fl_flags() & FL__NN_CACHED ? fl__nn_cache_in_use : NULL;
}

static fl__nn_cached *fl__nn_entry_of(const fl_nn_cache *c, const fl_nn_module *m) {
    for (int64_t i = 0; c && i < c->n_entry; i++)
        if (c->entry[i].m == m) return &c->entry[i];
    return NULL;
}

/* ---- attention ---- */

static bool fl__nn_has_in_bias(const fl_nn_attention_opts *o) {
    return !o->no_bias || o->in_bias;
}

/* Weights of q, k and v apart. */
static bool fl__nn_is_apart(const fl__nn_attention *a) {
    return a->o.kdim != a->dim || a->o.vdim != a->dim;
}

/* Parameters in their order, weights, bias of all three, bias_k and bias_v, relative_embedding,
   relative_attention_bias; NULL if the module has no such parameter. */
static fl_var *fl__nn_in_bias(const fl_nn_module *m) {
    const fl__nn_attention *a = m->data;
    return fl__nn_has_in_bias(&a->o) ? fl_nn_param_at(m, fl__nn_is_apart(a) ? 3 : 1) : NULL;
}
static int64_t fl__nn_behind_bias(const fl__nn_attention *a) {
    return (fl__nn_is_apart(a) ? 3 : 1) + fl__nn_has_in_bias(&a->o);
}
static fl_var *fl__nn_relative(const fl_nn_module *m) {
    const fl__nn_attention *a = m->data;
    return a->o.relative ? fl_nn_param_at(m, fl__nn_behind_bias(a) + 2 * a->o.bias_kv) : NULL;
}
static fl_var *fl__nn_bucket_bias(const fl_nn_module *m) {
    return ((const fl__nn_attention *)m->data)->o.buckets ? fl_nn_param_at(m, m->n_param - 1) : NULL;
}

/* [n, t, heads columns] -> [n, heads, t, columns] */
static fl_var *fl__nn_split_heads(const fl__nn_attention *a, fl_var *x, int64_t heads) {
    if (!x) return NULL;
    const fl_tensor *t = fv_value(x);
    return fv_transpose(fv_reshape(x, FL_SHAPE(t->shape[0], t->shape[1], heads, a->columns)), 1, 2);
}

/* q, k and v of one input, by one product: [3, n, heads, t, columns] */
static fl_var *fl__nn_project_packed(fl_nn_module *m, fl_var *x) {
    static const int parts_first[] = {2, 0, 3, 1, 4};
    const fl__nn_attention *a = m->data;
    const fl_tensor *t = fv_value(x);
    const fl_shape parts = FL_SHAPE(t->shape[0], t->shape[1], 3, a->heads, a->columns);
    fl_var *y = fv_linear(x, fl_nn_param_at(m, 0), fl__nn_in_bias(m));
    return fv_permute(fv_reshape(y, parts), 5, parts_first);
}

/* q (0), k (1) or v (2): its rows of the weight, or of one input's product by all of them. */
static fl_var *fl__nn_part_of(fl_nn_module *m, fl_var *x, int which, bool product) {
    const fl__nn_attention *a = m->data;
    const int64_t heads = which ? a->kv : a->heads;
    const int64_t begin = a->columns * (which ? a->heads + (which - 1) * a->kv : 0);
    const int64_t end = begin + a->columns * heads;
    if (product) return fl__nn_split_heads(a, fv_slice(x, 2, begin, end, 1), heads);
    fl_var *b = fl__nn_in_bias(m);
    fl_var *part = fl__nn_is_apart(a) ? fl_nn_param_at(m, which)
                                      : fv_slice(fl_nn_param_at(m, 0), 0, begin, end, 1);
    return fl__nn_split_heads(a, fv_linear(x, part, b ? fv_slice(b, 0, begin, end, 1) : NULL), heads);
}

/* q, k, v are [n, ., dim, kdim or vdim] of one n, k and v of one length; else fails. */
static bool fl__nn_attention_ok(const fl_nn_module *m, const fl_vars *in) {
    const fl__nn_attention *a = m->data;
    if (in->n < 1 || in->n > 4) {
        fl_nn_fail(m, "%d inputs, takes 1 to 4", in->n);
        return false;
    }
    const int64_t dims[] = {a->dim, a->o.kdim, a->o.vdim};
    for (int i = 0; i < (in->n < 3 ? 1 : 3); i++)
        if (!fl_nn_sequence_ok(m, in->v[i], dims[i], INT64_MAX)) return false;
    if (in->n < 3 && fl__nn_is_apart(a)) {
        fl_nn_fail(m, "%d inputs, with kdim %" PRId64 " and vdim %" PRId64 " it takes q, k and v", in->n,
                   a->o.kdim, a->o.vdim);
        return false;
    }
    if (in->n < 3) return true;
    const int64_t *q = fv_value(in->v[0])->shape, *k = fv_value(in->v[1])->shape;
    const int64_t *v = fv_value(in->v[2])->shape;
    if (q[0] == k[0] && k[0] == v[0] && k[1] == v[1]) return true;
    char x[FL_NN_SHAPE], y[FL_NN_SHAPE], z[FL_NN_SHAPE];
    fl_nn_fail(m, "q %s, k %s, v %s do not fit", fl_nn_shape_text(in->v[0], x),
               fl_nn_shape_text(in->v[1], y), fl_nn_shape_text(in->v[2], z));
    return false;
}

/* What is added to the scores of q [n, heads, t, columns] with `keys` keys, t of them at `place`; the mask,
   if there is one, hides some. */
static fl_var *fl__nn_bias(fl_nn_module *m, fl_var *q, fl_var *mask, int64_t keys, int64_t place) {
    static const int heads_first[] = {2, 0, 1};
    const fl__nn_attention *a = m->data;
    const int64_t t = fv_value(q)->shape[2];
    const char *backend = fl_backend_name(fv_value(q));
    fl_var *part[3] = {NULL}, *sum = NULL;
    int n = 0;
    if (a->o.relative) {
        const double scale = a->o.scale ? a->o.scale : 1 / sqrt((double)a->columns);
        part[n++] = fv_relative_scores(fv_mul(q, fv_num(scale)), fl__nn_relative(m), keys, place);
    }
    if (a->o.buckets) {
        fl_tensor *at = fl_relative_buckets(t, keys, place, a->o.buckets, a->o.max_distance, a->o.causal);
        fl_var *each = at ? fv_embedding(fl_to(at, backend), fl__nn_bucket_bias(m), -1) : NULL;
        part[n++] = fv_permute(each, 3, heads_first);
    }
    if (a->o.alibi) {
        fl_tensor *distance = fl_alibi(a->heads, t, keys, place);
        part[n++] = fv_const(distance ? fl_to(distance, backend) : NULL);
    }
    for (int i = 0; i < n; i++) sum = i ? fv_add(sum, part[i]) : part[0];
    if (!n || !sum) return n ? NULL : mask;
    if (!mask) return sum;
    return fv_value(mask)->dtype == FL_B8 ? fv_where(mask, sum, fv_num(-INFINITY)) : fv_add(mask, sum);
}

/* Writes k and v behind the places that the cache has, and makes them all that it has then. */
static bool fl__nn_cache_append(fl_nn_module *m, fl_nn_cache *c, fl__nn_cached *entry, fl_var *kv[2]) {
    const int64_t *s = fv_value(kv[0])->shape, end = c->position + s[2];
    if (s[0] != c->n || end > c->length) {
        fl_nn_fail(m, "the cache has %" PRId64 " sequences of %" PRId64 " places, %" PRId64
                   " of them full: %" PRId64 " sequences and %" PRId64 " more do not fit", c->n,
                   c->length, c->position, s[0], s[2]);
        return false;
    }
    fl_tensor *to[2] = {entry->k, entry->v};
    for (int i = 0; i < 2; i++) {
        fl_tensor *part = fl_slice(to[i], 2, c->position, end, 1);
        if (!part || !fl_assign(part, fv_value(kv[i]))) return false;
        if (!(kv[i] = fv_const(fl_slice(to[i], 2, 0, end, 1)))) return false;
    }
    c->step = s[2];
    return true;
}

/* The memory's keys and values, dense. */
static bool fl__nn_cache_memory(fl_nn_cache *c, fl__nn_cached *entry, const fl_var *k, const fl_var *v) {
    fl_tensor *kept[2] = {fv_value(k), fv_value(v)};
    for (int i = 0; i < 2; i++) {
        kept[i] = fl_contiguous(c->dtype ? fl_cast(kept[i], c->dtype) : kept[i]);
        if (!kept[i]) return false;
    }
    fl_drop(entry->k), fl_drop(entry->v);
    entry->k = fl_keep(kept[0]), entry->v = fl_keep(kept[1]);
    return true;
}

/* q, k and v of the inputs, k and v of what the cache holds too; *place gets where q begins. */
static bool fl__nn_project(fl_nn_module *m, const fl_vars *in, fl_var *qkv[3], int64_t *place) {
    const fl__nn_attention *a = m->data;
    fl_nn_cache *c = fl__nn_cache_now();
    fl__nn_cached *entry = fl__nn_entry_of(c, m);
    const bool self = in->n < 3, known = c && a->o.cross && c->position > 0 && entry && entry->k;
    if (c && !entry) {
        fl_nn_fail(m, "is not in the tree that the cache was made for");
        return false;
    }
    *place = c && !a->o.cross ? c->position : 0;
    fl_var *product = self ? fv_linear(in->v[0], fl_nn_param_at(m, 0), fl__nn_in_bias(m)) : NULL;
    for (int i = 0; i < (known ? 1 : 3); i++)
        if (!(qkv[i] = fl__nn_part_of(m, self ? product : in->v[i], i, self))) return false;
    for (int i = 0; a->o.rotary && i < 2; i++) {
        fl_rotary_opts rope = a->o.rope;
        rope.offset += *place;
        if (!(qkv[i] = fv_rotary_opt(qkv[i], rope))) return false;
    }
    if (c && !a->o.cross) return fl__nn_cache_append(m, c, entry, qkv + 1);
    if (c && !known && !fl__nn_cache_memory(c, entry, qkv[1], qkv[2])) return false;
    if (c) qkv[1] = fv_const(entry->k), qkv[2] = fv_const(entry->v);
    return qkv[1] && qkv[2];
}

/* Puts the keys and values that each step sees before the others, where causal hides nothing: bias_k and
   bias_v, and zeros. Returns how many; -1 after an error. */
static int fl__nn_put_extra(fl_nn_module *m, fl_var *qkv[3], fl_var **mask) {
    const fl__nn_attention *a = m->data;
    const int n = a->o.bias_kv + a->o.zero_attn;
    const fl_tensor *k = fv_value(qkv[1]);
    const char *backend = fl_backend_name(k);
    const fl_shape one = FL_SHAPE(k->shape[0], a->kv, 1, a->columns);
    for (int i = 1; n && i < 3; i++) {
        fl_var *part[3];
        int parts = 0;
        if (a->o.zero_attn) part[parts++] = fv_const(fl_to(fl_zeros(one, fv_value(qkv[i])->dtype), backend));
        if (a->o.bias_kv) {
            fl_var *bias = fl_nn_param_at(m, fl__nn_behind_bias(a) + i - 1);
            bias = fv_reshape(bias, FL_SHAPE(1, a->kv, 1, a->columns));
            part[parts++] = fv_cast(fv_expand(bias, one), fv_value(qkv[i])->dtype);
        }
        part[parts++] = qkv[i];
        if (!(qkv[i] = fv_concat(part, parts, 2))) return -1;
    }
    if (!n || !*mask) return n;
    fl_shape s = fl_shape_of(fv_value(*mask));
    const fl_dtype dtype = fv_value(*mask)->dtype;
    if (!s.ndim) return fl_nn_fail(m, "the mask has no axis of keys"), -1;
    s.dim[s.ndim - 1] = k->shape[2];
    fl_var *all = fv_expand(*mask, s);
    s.dim[s.ndim - 1] = n;
    fl_var *seen = fv_const(fl_to(dtype == FL_B8 ? fl_ones(s, dtype) : fl_zeros(s, dtype), backend));
    *mask = fv_concat((fl_var *[]){seen, all}, 2, -1);
    return *mask ? n : -1;
}

static fl_vars fl__nn_attention_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_attention *a = m->data;
    if (!fl__nn_attention_ok(m, &in)) return (fl_vars){0};
    fl_var *qkv[3], *y, *mask = in.n == 2 ? in.v[1] : in.n == 4 ? in.v[3] : NULL;
    if (mask && fv_value(mask)->weak) mask = NULL;
    fv_attention_opts o = {.mask = mask, .causal = a->o.causal, .window = a->o.window,
                           .softcap = a->o.softcap, .scale = a->o.scale,
                           .dropout = m->train ? a->o.dropout : 0};
    const bool biased = a->o.relative || a->o.buckets || a->o.alibi, more = a->o.bias_kv || a->o.zero_attn;
    if (in.n < 3 && a->kv == a->heads && !a->o.rotary && !biased && !more && !fl__nn_cache_now()) {
        qkv[0] = fl__nn_project_packed(m, in.v[0]);
        y = qkv[0] ? fv_attention_packed_opt(qkv[0], o) : NULL;
    } else {
        if (!fl__nn_project(m, &in, qkv, &o.offset)) return (fl_vars){0};
        if (biased && !(o.mask = fl__nn_bias(m, qkv[0], mask, fv_value(qkv[1])->shape[2], o.offset)))
            return (fl_vars){0};
        const int extra = fl__nn_put_extra(m, qkv, &o.mask);
        if (extra < 0) return (fl_vars){0};
        o.offset += extra;
        y = fv_attention_opt(qkv[0], qkv[1], qkv[2], o);
    }
    y = fv_reshape(fv_transpose(y, 1, 2), fl_shape_of(fv_value(in.v[0])));
    return fl_nn_forward_vars(m->child[0], FL_VARS(y));
}

static void fl__nn_attention_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_attention *a = m->data;
    fl_nn_text t = {buf, size, 0};
    fl_nn_put(&t, "%" PRId64 ", %" PRId64 ", dropout=%g%s", a->dim, a->heads, a->o.dropout,
              a->o.causal ? ", causal=True" : "");
    if (a->kv != a->heads) fl_nn_put(&t, ", n_kv_heads=%" PRId64, a->kv);
    if (a->o.window) fl_nn_put(&t, ", window=%" PRId64, a->o.window);
    if (a->o.softcap > 0) fl_nn_put(&t, ", softcap=%g", a->o.softcap);
    if (a->o.rotary) fl_nn_put(&t, ", rotary=True");
    if (a->o.relative) fl_nn_put(&t, ", relative=%" PRId64, a->o.relative);
    if (a->o.buckets) fl_nn_put(&t, ", buckets=%" PRId64, a->o.buckets);
    if (a->o.alibi) fl_nn_put(&t, ", alibi=True");
    if (fl__nn_is_apart(a)) fl_nn_put(&t, ", kdim=%" PRId64 ", vdim=%" PRId64, a->o.kdim, a->o.vdim);
    if (a->o.bias_kv) fl_nn_put(&t, ", add_bias_kv=True");
    if (a->o.zero_attn) fl_nn_put(&t, ", add_zero_attn=True");
}

static const fl_nn_type fl__nn_attention_type = {
    .name = "MultiheadAttention",
    .maker = "fl_nn_attention",
    .forward = fl__nn_attention_forward,
    .describe = fl__nn_attention_describe,
};

static bool fl__nn_attention_fill(fl_nn_module *m, const fl__nn_attention *a) {
    const fl_nn_attention_opts *o = &a->o;
    static const char *const apart[] = {"q_proj_weight", "k_proj_weight", "v_proj_weight"};
    static const char *const bias[] = {"bias_k", "bias_v"};
    const bool is_apart = fl__nn_is_apart(a);
    const int64_t dim = a->dim, kv = a->kv * a->columns, rows = dim + 2 * kv;
    for (int i = 0; i < (is_apart ? 3 : 1); i++) {
        const int64_t out = !is_apart ? rows : i ? kv : dim, in = i == 1 ? o->kdim : i ? o->vdim : dim;
        const double bound = sqrt(6.0 / (double)(in + out)); /* Glorot's, of [out, in] */
        fl_tensor *w = fl_uniform(FL_SHAPE(out, in), -bound, bound, o->dtype, o->rng);
        if (!fl_nn_add_param(m, is_apart ? apart[i] : "in_proj_weight", fv_param(w))) return false;
    }
    if (fl__nn_has_in_bias(o) &&
        !fl_nn_add_param(m, "in_proj_bias", fv_param(fl_zeros(FL_SHAPE(rows), o->dtype))))
        return false;
    for (int i = 0; o->bias_kv && i < 2; i++) {
        fl_tensor *b = fl_normal(FL_SHAPE(1, 1, kv), 0, 1 / sqrt((double)kv), o->dtype, o->rng);
        if (!fl_nn_add_param(m, bias[i], fv_param(b))) return false;
    }
    fl_nn_module *out =
        fl_nn_add(m, "out_proj",
                  fl_nn_linear(dim, dim, .no_bias = o->no_bias, .dtype = o->dtype, .rng = o->rng));
    if (!out || (!o->no_bias && !fl_nn_init_constant(fl_nn_get_param(out, "bias"), 0))) return false;
    if (o->relative) {
        fl_tensor *r = fl_uniform(FL_SHAPE(2 * o->relative - 1, a->columns), -0.1, 0.1, o->dtype, o->rng);
        if (!fl_nn_add_param(m, "relative_embedding", fv_param(r))) return false;
    }
    if (!o->buckets) return true;
    fl_tensor *b = fl_normal(FL_SHAPE(o->buckets, a->heads), 0, 1 / sqrt((double)dim), o->dtype, o->rng);
    return fl_nn_add_param(m, "relative_attention_bias", fv_param(b)) != NULL;
}

FL_API fl_nn_module *fl_nn_attention_opt(int64_t dim, int64_t heads, fl_nn_attention_opts o) {
    fl__nn_attention a = {.dim = dim, .heads = heads, .kv = o.n_kv_heads ? o.n_kv_heads : heads, .o = o};
    const int64_t ways = o.causal ? 1 : 2; /* buckets are for each way */
    if (dim < 1 || dim > INT32_MAX || heads < 1 || dim % heads ||
        !(o.dropout >= 0 && o.dropout <= 1))
        return fl_err_null("fl_nn_attention: %" PRId64 " heads of dim %" PRId64 ", dropout %g", heads, dim,
                           o.dropout);
    if (a.kv < 1 || heads % a.kv)
        return fl_err_null("fl_nn_attention: %" PRId64 " heads share %" PRId64 " of keys", heads, a.kv);
    if (o.max_distance == 0) a.o.max_distance = 128;
    if (!o.kdim) a.o.kdim = dim;
    if (!o.vdim) a.o.vdim = dim;
    if (a.o.kdim < 1 || a.o.kdim > INT32_MAX || a.o.vdim < 1 || a.o.vdim > INT32_MAX)
        return fl_err_null("fl_nn_attention: kdim %" PRId64 ", vdim %" PRId64 ": must be positive", o.kdim, o.vdim);
    if ((o.bias_kv || o.zero_attn) && (o.window || o.relative || o.buckets || o.alibi))
        return fl_err_null("fl_nn_attention: bias_kv and zero_attn have no place, which window, relative, buckets "
                           "and alibi need");
    a.columns = dim / heads;
    if (o.window < 0 || !(o.softcap >= 0) || o.relative < 0 || o.relative > INT32_MAX || o.buckets < 0 ||
        (o.buckets && (o.buckets < 2 * ways || a.o.max_distance <= o.buckets / ways / 2)))
        return fl_err_null("fl_nn_attention: window %" PRId64 ", softcap %g, relative %" PRId64 ", %" PRId64
                           " buckets up to %" PRId64, o.window, o.softcap, o.relative, o.buckets,
                           a.o.max_distance);
    if (!fl_nn_dtype_ok("fl_nn_attention", o.dtype)) return fl_raise();
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_persistent(true);
    fl_nn_module *m = fl_nn_new(&fl__nn_attention_type, &a, sizeof a);
    const bool ok = m && fl__nn_attention_fill(m, &a);
    if (m) ((fl__nn_attention *)m->data)->o.rng = NULL; /* the caller's, for now */
    fl_scope_end(&s);
    return fl_nn_made(m, ok);
}

/* ---- caches, from outside ---- */

FL_API void fl_nn_cache_free(fl_nn_cache *c) {
    if (!c) return;
    for (int64_t i = 0; i < c->n_entry; i++) fl_drop(c->entry[i].k), fl_drop(c->entry[i].v);
    fl_heap_free(c->entry);
    fl_heap_free(c);
}

/* Space for m's keys and values, if it is an attention. */
static bool fl__nn_cache_add(fl_nn_module *m, const char *prefix, void *user) {
    fl_nn_cache *c = user;
    const fl__nn_attention *a = m->data;
    (void)prefix;
    if (m->type != &fl__nn_attention_type) return true;
    if (!fl_heap_grow(&c->entry, &c->cap, c->n_entry + 1, sizeof *c->entry)) return false;
    fl__nn_cached *entry = &c->entry[c->n_entry++];
    *entry = (fl__nn_cached){.m = m};
    if (a->o.cross) return true;
    fl_scope s = fl_scope_begin();
    fl_tensor *w = fv_value(fl_nn_param_at(m, 0));
    for (int i = 0; i < 2; i++) {
        fl_tensor *t = fl_zeros(FL_SHAPE(c->n, a->kv, c->length, a->columns), c->dtype ? c->dtype : w->dtype);
        t = t ? fl_keep(fl_to(t, fl_backend_name(w))) : NULL;
        *(i ? &entry->v : &entry->k) = t;
    }
    fl_scope_end(&s);
    return entry->k && entry->v;
}

FL_API fl_nn_cache *fl_nn_cache_new_opt(fl_nn_module *m, int64_t n, int64_t length, fl_nn_cache_opts o) {
    if (!fl_given(m, "fl_nn_cache_new", "the module")) return fl_raise();
    if (n < 1 || length < 1)
        return fl_err_null("fl_nn_cache_new: %" PRId64 " sequences of %" PRId64 " places", n, length);
    if (!fl_nn_dtype_ok("fl_nn_cache_new", o.dtype)) return fl_raise();
    fl_nn_cache *c = fl_heap_alloc(sizeof *c);
    if (!c) return fl_raise();
    c->n = n, c->length = length, c->dtype = o.dtype;
    fl_quiet(+1);
    bool ok = fl_nn_each(m, fl__nn_cache_add, c);
    if (ok && !c->n_entry) ok = fl_fail("fl_nn_cache_new: there is no attention in the module");
    fl_quiet(-1);
    if (ok) return c;
    fl_nn_cache_free(c);
    return fl_raise();
}

FL_API fl_vars fl_nn_forward_cached(fl_nn_module *m, fl_vars in, fl_nn_cache *c) {
    if (!fl_given(m, "fl_nn_forward_cached", "the module") ||
        !fl_given(c, "fl_nn_forward_cached", "the cache")) {
        fl_raise();
        return (fl_vars){0};
    }
    const uint64_t flags = fl_flags();
    fl_nn_cache *outer = fl__nn_cache_in_use;
    fl__nn_cache_in_use = c;
    c->step = 0;
    fl_no_grad(true);
    fl_set_flags(fl_flags() | FL__NN_CACHED);
    fl_vars y = fl_nn_forward_vars(m, in);
    fl_set_flags(flags);
    fl__nn_cache_in_use = outer;
    if (y.n) c->position += c->step;
    return y;
}

FL_API int64_t fl_nn_cache_position(const fl_nn_cache *c) { return c ? c->position : 0; }

FL_API int64_t fl_nn_cached_position(void) { return fl_nn_cache_position(fl__nn_cache_now()); }

FL_API bool fl_nn_cache_rewind(fl_nn_cache *c, int64_t position) {
    if (!fl_given(c, "fl_nn_cache_rewind", "the cache")) return fl_raise();
    if (position < 0 || position > c->position)
        return fl_err_false("fl_nn_cache_rewind: to %" PRId64 " of %" PRId64 " places", position, c->position);
    c->position = position;
    return true;
}

FL_API bool fl_nn_cache_reset(fl_nn_cache *c) {
    if (!fl_given(c, "fl_nn_cache_reset", "the cache")) return fl_raise();
    return fl_nn_cache_rewind(c, 0);
}

FL_API bool fl_nn_cache_reorder(fl_nn_cache *c, fl_tensor *index) {
    if (!fl_given(c, "fl_nn_cache_reorder", "the cache") ||
        !fl_given(index, "fl_nn_cache_reorder", "the index"))
        return fl_raise();
    if (index->ndim != 1 || index->shape[0] != c->n)
        return fl_err_false("fl_nn_cache_reorder: index %s for %" PRId64 " sequences", FL_SHAPE_TEXT(index),
                            c->n);
    fl_scope s = fl_scope_begin();
    fl_tensor **now = fl_heap_alloc((size_t)(2 * c->n_entry) * sizeof *now);
    bool ok = now != NULL;
    for (int64_t i = 0; ok && i < 2 * c->n_entry; i++) {
        fl_tensor *t = i % 2 ? c->entry[i / 2].v : c->entry[i / 2].k;
        if (t) ok = (now[i] = fl_index_select(t, 0, index)) != NULL;
    }
    for (int64_t i = 0; ok && i < c->n_entry; i++) {
        fl_drop(c->entry[i].k), fl_drop(c->entry[i].v);
        c->entry[i].k = fl_keep(now[2 * i]), c->entry[i].v = fl_keep(now[2 * i + 1]);
    }
    fl_heap_free(now);
    fl_scope_end(&s);
    return ok || fl_raise();
}

#endif
#endif

/* MIT licence: see LICENSE. */
