/* fl/nn/attention.h - multi-head attention and its KV cache */
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
    double dropout;     /* of the attention weights (after the softmax) */
    bool causal;        /* step i attends to steps 0 to i, and to cached steps before them */
    bool no_bias;
    bool in_bias;       /* with no_bias: q, k and v have a bias nevertheless (Qwen2) */
    bool cross;         /* cross-attention to a constant memory: a cache stores its keys and values once */
    int64_t n_kv_heads; /* key/value heads (grouped-query attention), a divisor of heads; 0 -> heads */
    int64_t window;     /* sliding window: attend to steps fewer than this many away; 0 -> all */
    double softcap, scale; /* see fl_attention; 0 -> none, 1 / sqrt(dim / heads) (T5: 1) */
    bool rotary;        /* rotary position embedding of queries and keys, with `rope`: see fl_rotary */
    fl_rotary_opts rope;
    int64_t relative;   /* c > 0: a learned vector of dim / heads elements for each distance from -c + 1 to
                           c - 1; its product with the query is added to the scores: relative_embedding
                           [2 c - 1, dim / heads], shared by the heads (as in Flashlight, where c = bptt) */
    int64_t buckets;    /* > 0: adds a learned bias per head and distance bucket to the scores, as T5:
                           relative_attention_bias [buckets, heads]; bidirectional unless causal */
    int64_t max_distance; /* of buckets, 0 -> 128 */
    int64_t kdim, vdim; /* features of k and v; 0 -> dim. If one differs from dim, q_proj_weight [dim, dim],
                           k_proj_weight [., kdim] and v_proj_weight [., vdim] replace in_proj_weight */
    bool bias_kv;       /* one more key and value, bias_k and bias_v [1, 1, dim], visible to every step */
    bool zero_attn;     /* one more key and value, of zeros, visible to every step */
    bool alibi;         /* ALiBi: subtracts slope of the head * distance from the scores: see fl_alibi */
    fl_dtype dtype;
    fl_rng *rng;
    char _end;
} fl_nn_attention_opts;
/* Multi-head attention as nn.MultiheadAttention(batch_first=True): in_proj_weight [3 dim, dim] and
   in_proj_bias [3 dim] project to q, k and v, each split into `heads` heads of dim / heads; fl_attention per
   head; out_proj is a linear layer over the concatenated heads. With n_kv_heads the k and v thirds have
   n_kv_heads dim / heads rows. Inputs (the result has the first one's shape):
     x [n, t, dim]                          self-attention
     x, mask                                the same; a mask as fl_attention takes, with the heads'
                                            axis: it broadcasts to [n, heads, t, t]
     q [n, t, dim], k [n, s, kdim],         q attends to k
     v [n, s, vdim]
     q, k, v, mask
   A mask that is a number (fv_num(0)) is ignored. With a cache, a mask covers the cached keys and the new
   ones. A mask does not cover the keys that bias_kv and zero_attn add. */
#define fl_nn_attention(...) FL_NN__ATTENTION(__VA_ARGS__, ._end = 0)
#define FL_NN__ATTENTION(dim, heads, ...) \
    fl_nn_attention_opt(dim, heads, FL_LITERAL(fl_nn_attention_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_attention_opt(int64_t dim, int64_t heads, fl_nn_attention_opts o);

/* KV cache: the keys and values of all attentions in a tree, for incremental decoding. Each step gets only
   the new positions, e.g. first a prompt, then one at a time. The tree is not changed, so several caches, and
   threads, may share one tree.

     fl_nn_cache *cache = fl_nn_cache_new(decoder, n, 512);
     fl_var *y = fl_nn_forward_cached(decoder, FL_VARS(prompt, memory), cache).v[0];   // positions 0 to t - 1
     y = fl_nn_forward_cached(decoder, FL_VARS(next, memory), cache).v[0];             // position t ...
     fl_nn_cache_free(cache); */
typedef struct fl_nn_cache fl_nn_cache;
typedef struct fl_nn_cache_opts {
    fl_opts_guard guard_;
    fl_dtype dtype; /* of keys and values; 0 -> each attention's */
    char _end;
} fl_nn_cache_opts;
/* A cache for n sequences of at most `length` positions: two tensors [n, kv heads, length, dim / heads] for
   each attention of m, which must outlive the cache. Returns NULL after an error. */
#define fl_nn_cache_new(...) FL_NN__CACHE_NEW(__VA_ARGS__, ._end = 0)
#define FL_NN__CACHE_NEW(m, n, length, ...) \
    fl_nn_cache_new_opt(m, n, length, FL_LITERAL(fl_nn_cache_opts, __VA_ARGS__))
FL_API fl_nn_cache *fl_nn_cache_new_opt(fl_nn_module *m, int64_t n, int64_t length, fl_nn_cache_opts o);
FL_API void fl_nn_cache_free(fl_nn_cache *c); /* NULL is allowed */
/* Runs m, the cache's tree or a part of it, on inputs whose positions follow the cached ones, without
   recording for backward. Self-attentions append their keys and values, cross-attentions compute theirs at
   position 0. A step that does not fit is an error; after any error the cache is unchanged. */
FL_API fl_vars fl_nn_forward_cached(fl_nn_module *m, fl_vars in, fl_nn_cache *c);
/* Number of cached positions: where the next step begins. */
FL_API int64_t fl_nn_cache_position(const fl_nn_cache *c);
/* For forward functions: the position of the first step of the inputs in this thread's cached call; 0 without
   a cache. */
FL_API int64_t fl_nn_cached_position(void);
/* Truncates to the first `position` positions (e.g. rejected speculative tokens); 0 also discards the memory.
   False after an error: fewer positions are cached. */
FL_API bool fl_nn_cache_rewind(fl_nn_cache *c, int64_t position);
/* fl_nn_cache_rewind(c, 0). */
FL_API bool fl_nn_cache_reset(fl_nn_cache *c);
/* Sequence i becomes the former sequence index[i], i64 [n] (beam search). During the call two copies of the
   cache exist. Returns false after an error, with the cache unchanged. */
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
    int64_t dim, heads, kv, columns; /* kv: key/value heads; columns: features per head */
    fl_nn_attention_opts o;
} fl__nn_attention;

/* ---- caches ---- */

typedef struct fl__nn_cached {
    const fl_nn_module *m;
    fl_tensor *k, *v; /* [n, kv, length, columns]; NULL for cross-attention before its first step */
} fl__nn_cached;

struct fl_nn_cache {
    fl__nn_cached *entry;
    int64_t n_entry, cap, n, length, position;
    int64_t step; /* positions written by the step in progress */
    fl_dtype dtype;
};

/* The cache of this thread's current step: valid while the flag is set; scopes restore the flags. */
#define FL__NN_CACHED ((uint64_t)1 << 40)
static _Thread_local fl_nn_cache *fl__nn_cache_in_use;

static fl_nn_cache *fl__nn_cache_current(void) {
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

/* Whether q, k and v have separate weights. */
static bool fl__nn_is_separate(const fl__nn_attention *a) {
    return a->o.kdim != a->dim || a->o.vdim != a->dim;
}

/* Order of the parameters: weights, bias of all three, bias_k and bias_v, relative_embedding,
   relative_attention_bias. These return NULL if the module has no such parameter. */
static fl_var *fl__nn_in_bias(const fl_nn_module *m) {
    const fl__nn_attention *a = m->data;
    return fl__nn_has_in_bias(&a->o) ? fl_nn_param_at(m, fl__nn_is_separate(a) ? 3 : 1) : NULL;
}
static int64_t fl__nn_after_bias(const fl__nn_attention *a) {
    return (fl__nn_is_separate(a) ? 3 : 1) + fl__nn_has_in_bias(&a->o);
}
static fl_var *fl__nn_relative(const fl_nn_module *m) {
    const fl__nn_attention *a = m->data;
    return a->o.relative ? fl_nn_param_at(m, fl__nn_after_bias(a) + 2 * a->o.bias_kv) : NULL;
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

/* q, k and v of one input, by one matrix product: [3, n, heads, t, columns] */
static fl_var *fl__nn_project_packed(fl_nn_module *m, fl_var *x) {
    static const int parts_first[] = {2, 0, 3, 1, 4};
    const fl__nn_attention *a = m->data;
    const fl_tensor *t = fv_value(x);
    const fl_shape parts = FL_SHAPE(t->shape[0], t->shape[1], 3, a->heads, a->columns);
    fl_var *y = fv_linear(x, fl_nn_param_at(m, 0), fl__nn_in_bias(m));
    return fv_permute(fv_reshape(y, parts), 5, parts_first);
}

/* q (0), k (1) or v (2): by its rows of the weight, or (product) its columns of the packed projection x. */
static fl_var *fl__nn_part_of(fl_nn_module *m, fl_var *x, int which, bool product) {
    const fl__nn_attention *a = m->data;
    const int64_t heads = which ? a->kv : a->heads;
    const int64_t begin = a->columns * (which ? a->heads + (which - 1) * a->kv : 0);
    const int64_t end = begin + a->columns * heads;
    if (product) return fl__nn_split_heads(a, fv_slice(x, 2, begin, end, 1), heads);
    fl_var *b = fl__nn_in_bias(m);
    fl_var *part = fl__nn_is_separate(a) ? fl_nn_param_at(m, which)
                                      : fv_slice(fl_nn_param_at(m, 0), 0, begin, end, 1);
    return fl__nn_split_heads(a, fv_linear(x, part, b ? fv_slice(b, 0, begin, end, 1) : NULL), heads);
}

/* Checks that q, k, v are [n, ., dim, kdim or vdim] with equal n, k and v of equal length; else fails. */
static bool fl__nn_attention_ok(const fl_nn_module *m, const fl_vars *in) {
    const fl__nn_attention *a = m->data;
    if (in->n < 1 || in->n > 4) {
        fl_nn_fail(m, "got %d inputs, expected 1 to 4", in->n);
        return false;
    }
    const int64_t dims[] = {a->dim, a->o.kdim, a->o.vdim};
    for (int i = 0; i < (in->n < 3 ? 1 : 3); i++)
        if (!fl_nn_sequence_ok(m, in->v[i], dims[i], INT64_MAX)) return false;
    if (in->n < 3 && fl__nn_is_separate(a)) {
        fl_nn_fail(m, "got %d inputs, expected q, k and v with kdim %" PRId64 " and vdim %" PRId64, in->n,
                   a->o.kdim, a->o.vdim);
        return false;
    }
    if (in->n < 3) return true;
    const int64_t *q = fv_value(in->v[0])->shape, *k = fv_value(in->v[1])->shape;
    const int64_t *v = fv_value(in->v[2])->shape;
    if (q[0] == k[0] && k[0] == v[0] && k[1] == v[1]) return true;
    char x[FL_NN_SHAPE], y[FL_NN_SHAPE], z[FL_NN_SHAPE];
    fl_nn_fail(m, "q %s, k %s, v %s: expected equal n, and k and v of equal length",
               fl_nn_shape_text(in->v[0], x),
               fl_nn_shape_text(in->v[1], y), fl_nn_shape_text(in->v[2], z));
    return false;
}

/* Bias of the scores of q [n, heads, t, columns], whose first position is `position`, with `keys` keys,
   combined with the mask, if any. */
static fl_var *fl__nn_bias(fl_nn_module *m, fl_var *q, fl_var *mask, int64_t keys, int64_t position) {
    static const int heads_first[] = {2, 0, 1};
    const fl__nn_attention *a = m->data;
    const int64_t t = fv_value(q)->shape[2];
    const char *backend = fl_backend_name(fv_value(q));
    fl_var *part[3] = {NULL}, *sum = NULL;
    int n = 0;
    if (a->o.relative) {
        const double scale = a->o.scale ? a->o.scale : 1 / sqrt((double)a->columns);
        part[n++] = fv_relative_scores(fv_mul(q, fv_num(scale)), fl__nn_relative(m), keys, position);
    }
    if (a->o.buckets) {
        fl_tensor *at = fl_relative_buckets(t, keys, position, a->o.buckets, a->o.max_distance, a->o.causal);
        fl_var *each = at ? fv_embedding(fl_to(at, backend), fl__nn_bucket_bias(m), -1) : NULL;
        part[n++] = fv_permute(each, 3, heads_first);
    }
    if (a->o.alibi) {
        fl_tensor *distance = fl_alibi(a->heads, t, keys, position);
        part[n++] = fv_const(distance ? fl_to(distance, backend) : NULL);
    }
    for (int i = 0; i < n; i++) sum = i ? fv_add(sum, part[i]) : part[0];
    if (!n || !sum) return n ? NULL : mask;
    if (!mask) return sum;
    return fv_value(mask)->dtype == FL_B8 ? fv_where(mask, sum, fv_num(-INFINITY)) : fv_add(mask, sum);
}

/* Appends k and v to the cache and replaces them by all that it holds then. */
static bool fl__nn_cache_append(fl_nn_module *m, fl_nn_cache *c, fl__nn_cached *entry, fl_var *kv[2]) {
    const int64_t *s = fv_value(kv[0])->shape, end = c->position + s[2];
    if (s[0] != c->n || end > c->length) {
        fl_nn_fail(m, "the cache of %" PRId64 " sequences of %" PRId64 " positions holds %" PRId64
                   ": no space for %" PRId64 " sequences of %" PRId64 " more", c->n,
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

/* Stores keys and values of the memory, contiguous. */
static bool fl__nn_cache_memory(fl_nn_cache *c, fl__nn_cached *entry, const fl_var *k, const fl_var *v) {
    fl_tensor *kv[2] = {fv_value(k), fv_value(v)};
    for (int i = 0; i < 2; i++) {
        kv[i] = fl_contiguous(c->dtype ? fl_cast(kv[i], c->dtype) : kv[i]);
        if (!kv[i]) return false;
    }
    fl_drop(entry->k), fl_drop(entry->v);
    entry->k = fl_keep(kv[0]), entry->v = fl_keep(kv[1]);
    return true;
}

/* Projects the inputs to q, k and v, with the cached k and v; *position is where q begins. */
static bool fl__nn_project(fl_nn_module *m, const fl_vars *in, fl_var *qkv[3], int64_t *position) {
    const fl__nn_attention *a = m->data;
    fl_nn_cache *c = fl__nn_cache_current();
    fl__nn_cached *entry = fl__nn_entry_of(c, m);
    const bool self = in->n < 3, known = c && a->o.cross && c->position > 0 && entry && entry->k;
    if (c && !entry) {
        fl_nn_fail(m, "the module is not in the tree that the cache was made for");
        return false;
    }
    *position = c && !a->o.cross ? c->position : 0;
    fl_var *product = self ? fv_linear(in->v[0], fl_nn_param_at(m, 0), fl__nn_in_bias(m)) : NULL;
    for (int i = 0; i < (known ? 1 : 3); i++)
        if (!(qkv[i] = fl__nn_part_of(m, self ? product : in->v[i], i, self))) return false;
    for (int i = 0; a->o.rotary && i < 2; i++) {
        fl_rotary_opts rope = a->o.rope;
        rope.offset += *position;
        if (!(qkv[i] = fv_rotary_opt(qkv[i], rope))) return false;
    }
    if (c && !a->o.cross) return fl__nn_cache_append(m, c, entry, qkv + 1);
    if (c && !known && !fl__nn_cache_memory(c, entry, qkv[1], qkv[2])) return false;
    if (c) qkv[1] = fv_const(entry->k), qkv[2] = fv_const(entry->v);
    return qkv[1] && qkv[2];
}

/* Prepends the keys and values that every step sees, where causal masks nothing: bias_k and bias_v, and
   zeros. Returns their number; -1 after an error. */
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
            fl_var *bias = fl_nn_param_at(m, fl__nn_after_bias(a) + i - 1);
            bias = fv_reshape(bias, FL_SHAPE(1, a->kv, 1, a->columns));
            part[parts++] = fv_cast(fv_expand(bias, one), fv_value(qkv[i])->dtype);
        }
        part[parts++] = qkv[i];
        if (!(qkv[i] = fv_concat(part, parts, 2))) return -1;
    }
    if (!n || !*mask) return n;
    fl_shape s = fl_shape_of(fv_value(*mask));
    const fl_dtype dtype = fv_value(*mask)->dtype;
    if (!s.ndim) return fl_nn_fail(m, "the mask is a scalar, expected a last axis of keys"), -1;
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
    if (in.n < 3 && a->kv == a->heads && !a->o.rotary && !biased && !more && !fl__nn_cache_current()) {
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
    if (fl__nn_is_separate(a)) fl_nn_put(&t, ", kdim=%" PRId64 ", vdim=%" PRId64, a->o.kdim, a->o.vdim);
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
    const bool is_apart = fl__nn_is_separate(a);
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
    const int64_t directions = o.causal ? 1 : 2; /* these share the buckets */
    if (dim < 1 || dim > INT32_MAX || heads < 1)
        return fl_err_null("fl_nn_attention: dim and heads must be positive, got %" PRId64 " and %" PRId64,
                           dim, heads);
    if (dim % heads)
        return fl_err_null("fl_nn_attention: dim (%" PRId64 ") is not divisible by heads (%" PRId64 ")", dim,
                           heads);
    if (!(o.dropout >= 0 && o.dropout <= 1))
        return fl_err_null("fl_nn_attention: dropout must be in [0, 1], got %g", o.dropout);
    if (a.kv < 1 || heads % a.kv)
        return fl_err_null("fl_nn_attention: heads (%" PRId64 ") is not divisible by n_kv_heads "
                           "(%" PRId64 ")", heads, a.kv);
    if (o.max_distance == 0) a.o.max_distance = 128;
    if (!o.kdim) a.o.kdim = dim;
    if (!o.vdim) a.o.vdim = dim;
    if (a.o.kdim < 1 || a.o.kdim > INT32_MAX || a.o.vdim < 1 || a.o.vdim > INT32_MAX)
        return fl_err_null("fl_nn_attention: kdim and vdim must be positive, got %" PRId64 " and %" PRId64,
                           o.kdim, o.vdim);
    if ((o.bias_kv || o.zero_attn) && (o.window || o.relative || o.buckets || o.alibi))
        return fl_err_null("fl_nn_attention: bias_kv and zero_attn have no position and cannot be combined "
                           "with window, relative, buckets or alibi");
    a.columns = dim / heads;
    if (o.window < 0 || !(o.softcap >= 0) || o.relative < 0 || o.relative > INT32_MAX || o.buckets < 0 ||
        (o.buckets && (o.buckets < 2 * directions || a.o.max_distance <= o.buckets / directions / 2)))
        return fl_err_null("fl_nn_attention: got window %" PRId64 ", softcap %g, relative %" PRId64
                           ", buckets %" PRId64 ", max_distance %" PRId64 ": none may be negative, buckets "
                           "must be 0 or at least %" PRId64 ", max_distance greater than buckets / %" PRId64,
                           o.window, o.softcap, o.relative, o.buckets, a.o.max_distance,
                           2 * directions, 2 * directions);
    if (!fl_nn_dtype_ok("fl_nn_attention", o.dtype)) return fl_raise();
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_persistent(true);
    fl_nn_module *m = fl_nn_new(&fl__nn_attention_type, &a, sizeof a);
    const bool ok = m && fl__nn_attention_fill(m, &a);
    if (m) ((fl__nn_attention *)m->data)->o.rng = NULL; /* borrowed from the caller */
    fl_scope_end(&s);
    return fl_nn_finish(m, ok);
}

/* ---- caches: public functions ---- */

FL_API void fl_nn_cache_free(fl_nn_cache *c) {
    if (!c) return;
    for (int64_t i = 0; i < c->n_entry; i++) fl_drop(c->entry[i].k), fl_drop(c->entry[i].v);
    fl_heap_free(c->entry);
    fl_heap_free(c);
}

/* Allocates m's keys and values, if it is an attention. */
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
        return fl_err_null("fl_nn_cache_new: n and length must be positive, got %" PRId64 " and %" PRId64, n,
                           length);
    if (!fl_nn_dtype_ok("fl_nn_cache_new", o.dtype)) return fl_raise();
    fl_nn_cache *c = fl_heap_alloc(sizeof *c);
    if (!c) return fl_raise();
    c->n = n, c->length = length, c->dtype = o.dtype;
    fl_quiet(+1);
    bool ok = fl_nn_visit_modules(m, fl__nn_cache_add, c);
    if (ok && !c->n_entry) ok = fl_fail("fl_nn_cache_new: the module contains no attention");
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

FL_API int64_t fl_nn_cached_position(void) { return fl_nn_cache_position(fl__nn_cache_current()); }

FL_API bool fl_nn_cache_rewind(fl_nn_cache *c, int64_t position) {
    if (!fl_given(c, "fl_nn_cache_rewind", "the cache")) return fl_raise();
    if (position < 0 || position > c->position)
        return fl_err_false("fl_nn_cache_rewind: position must be in 0 to %" PRId64 ", got %" PRId64,
                            c->position, position);
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
        return fl_err_false("fl_nn_cache_reorder: index must be [%" PRId64 "], got %s", c->n,
                            FL_SHAPE_TEXT(index));
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
