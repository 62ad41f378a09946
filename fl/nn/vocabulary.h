/* fl/nn/vocabulary.h - adaptive embedding and adaptive softmax for large vocabularies */
#ifndef FL_NN_VOCABULARY_H
#define FL_NN_VOCABULARY_H
#include "container.h"
#include "embedding.h"
#include "layers.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Large vocabularies, words sorted by frequency, split into clusters at 0 < cutoffs[0] < ... < cutoffs[n - 1]
   = the number of words; each next cluster uses `divide` (0 -> 4) times fewer dims (arXiv 1609.04309). At
   most 8 clusters. */
typedef struct fl_nn_adaptive_opts {
    fl_opts_guard guard_;
    int64_t divide;
    fl_dtype dtype;
    fl_rng *rng;
    char _end;
} fl_nn_adaptive_opts;
/* Words [...] -> [..., dim]: embeddings.i.0 is the table of cluster i, embeddings.i.1 a linear layer without
   bias from its dims to dim, as in fairseq. */
#define fl_nn_adaptive_embedding(...) FL_NN__ADAPTIVE_EMBEDDING(__VA_ARGS__, ._end = 0)
#define FL_NN__ADAPTIVE_EMBEDDING(dim, cutoffs, ...) \
    fl_nn_adaptive_embedding_opt(dim, cutoffs, FL_LITERAL(fl_nn_adaptive_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_adaptive_embedding_opt(int64_t dim, fl_shape cutoffs,
                                                  fl_nn_adaptive_opts o);
/* x [k, dim], words [k] -> log P(word | x) [k], as nn.AdaptiveLogSoftmaxWithLoss: `head` is a linear layer to
   the words of the first cluster and one class per other cluster, tail.i two linear layers to the words of
   such a cluster. Reads the words on the host (synchronises with the device). */
#define fl_nn_adaptive_softmax(...) FL_NN__ADAPTIVE_SOFTMAX(__VA_ARGS__, ._end = 0)
#define FL_NN__ADAPTIVE_SOFTMAX(dim, cutoffs, ...) \
    fl_nn_adaptive_softmax_opt(dim, cutoffs, FL_LITERAL(fl_nn_adaptive_opts, __VA_ARGS__))
FL_API fl_nn_module *fl_nn_adaptive_softmax_opt(int64_t dim, fl_shape cutoffs,
                                                fl_nn_adaptive_opts o);

#ifdef __cplusplus
}
#endif
#endif /* FL_NN_VOCABULARY_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_NN_VOCABULARY) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_NN_VOCABULARY_IMPL
#define FL_NN_VOCABULARY_IMPL
#include "../ops/elementwise.h"
#include "../ops/index.h"
#include "../ops/order.h"
#include "../ops/softmax.h"
#include "../ops/view.h"
#include <inttypes.h>
#include <math.h>

typedef struct fl__nn_adaptive {
    int64_t dim, divide;
    fl_shape cutoffs; /* the last is the number of words */
} fl__nn_adaptive;

/* The first word of cluster p. */
static int64_t fl__nn_cluster_first(const fl__nn_adaptive *a, int p) {
    return p ? a->cutoffs.dim[p - 1] : 0;
}

/* The dims of cluster p. */
static int64_t fl__nn_cluster_dim(const fl__nn_adaptive *a, int p) {
    int64_t dim = a->dim;
    while (p--) dim /= a->divide;
    return dim;
}

static bool fl__nn_adaptive_ok(const char *fn, const fl__nn_adaptive *a, fl_dtype dtype) {
    const fl_shape *c = &a->cutoffs;
    char text[FL_NN_SHAPE];
    bool ok = c->ndim >= 1 && c->ndim <= FL_MAX_DIMS && a->dim >= 1 && a->divide >= 1;
    for (int p = 0; ok && p < c->ndim; p++)
        ok = c->dim[p] > fl__nn_cluster_first(a, p) && fl__nn_cluster_dim(a, p) > 0;
    if (!ok)
        return fl_fail("%s: cutoffs must increase from above 0 (1 to %d of them), and dim divided by divide "
                       "per cluster stay positive, got dim %" PRId64 ", divide %" PRId64 ", cutoffs %s", fn,
                       FL_MAX_DIMS, a->dim, a->divide, fl_shape_text(*c, text, sizeof text));
    return fl_nn_dtype_ok(fn, dtype);
}

/* Checks that words are i64; else fails. */
static bool fl__nn_words_ok(const fl_nn_module *m, const fl_tensor *words) {
    if (words->dtype != FL_I64)
        fl_nn_fail(m, "words must be i64, got %s", fl_dtype_name(words->dtype));
    return words->dtype == FL_I64;
}

/* Indices [k] of the words [n] in cluster p, and *local [k]: the words relative to its first. k may be 0. */
static fl_tensor *fl__nn_cluster_words(const fl__nn_adaptive *a, fl_tensor *words, int p,
                                       fl_tensor **local) {
    const int64_t first = fl__nn_cluster_first(a, p);
    fl_tensor *in =
        fl_logical_and(fl_ge(words, fl_int(first)), fl_lt(words, fl_int(a->cutoffs.dim[p])));
    fl_tensor *rows = fl_nonzero(in);
    rows = rows ? fl_reshape(rows, FL_SHAPE(fl_numel(rows))) : NULL;
    *local = rows ? fl_sub(fl_index_select(words, 0, rows), fl_int(first)) : NULL;
    return *local ? rows : NULL;
}

static void fl__nn_adaptive_describe(const fl_nn_module *m, char *buf, size_t size) {
    const fl__nn_adaptive *a = m->data;
    fl_nn_text t = {buf, size, 0};
    fl_nn_put(&t, "%" PRId64 ", cutoffs=", a->dim);
    fl_nn_put_shape(&t, &a->cutoffs);
    fl_nn_put(&t, ", div_value=%" PRId64, a->divide);
}

static fl_vars fl__nn_check_found(const fl_nn_module *m, int64_t have, int64_t want, fl_var *y) {
    const fl__nn_adaptive *a = m->data;
    if (!y || have == want) return FL_VARS(y);
    return fl_nn_fail(m, "%" PRId64 " words are out of range [0, %" PRId64 ")", want - have,
                      a->cutoffs.dim[a->cutoffs.ndim - 1]);
}

static fl_vars fl__nn_adaptive_embedding_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_adaptive *a = m->data;
    fl_shape shape = fl_shape_of(fv_value(in.v[0]));
    if (!fl__nn_words_ok(m, fv_value(in.v[0]))) return (fl_vars){0};
    if (shape.ndim == FL_MAX_DIMS) return fl_nn_fail(m, "words have %d dims, expected at most %d",
                                                     FL_MAX_DIMS, FL_MAX_DIMS - 1);
    const int64_t n = fl_shape_numel(shape);
    fl_tensor *words = fl_reshape(fv_value(in.v[0]), FL_SHAPE(n));
    const fl_tensor *like = fv_value(fl_nn_get_param(m, "embeddings.0.0.weight"));
    fl_var *y = fv_const(fl_to(fl_zeros(FL_SHAPE(n, a->dim), like->dtype), fl_backend_name(like)));
    int64_t found = 0;
    for (int p = 0; y && p < a->cutoffs.ndim; p++) {
        fl_tensor *local, *rows = fl__nn_cluster_words(a, words, p, &local);
        if (!rows) return (fl_vars){0};
        found += fl_numel(rows);
        if (!fl_numel(rows)) continue;
        y = fv_index_add(y, 0, rows, fl_nn_forward(m->child[0]->child[p], fv_const(local)), 1);
    }
    shape.dim[shape.ndim++] = a->dim;
    return fl__nn_check_found(m, found, n, fv_reshape(y, shape));
}

static const fl_nn_type fl__nn_adaptive_embedding_type = {
    .name = "AdaptiveEmbedding",
    .maker = "fl_nn_adaptive_embedding",
    .inputs = 1,
    .forward = fl__nn_adaptive_embedding_forward,
    .describe = fl__nn_adaptive_describe,
};

FL_API fl_nn_module *fl_nn_adaptive_embedding_opt(int64_t dim, fl_shape cutoffs,
                                                  fl_nn_adaptive_opts o) {
    const fl__nn_adaptive a = {dim, o.divide ? o.divide : 4, cutoffs};
    if (!fl__nn_adaptive_ok("fl_nn_adaptive_embedding", &a, o.dtype)) return fl_raise();
    fl_quiet(+1);
    fl_nn_module *m = fl_nn_new(&fl__nn_adaptive_embedding_type, &a, sizeof a);
    fl_nn_module *parts = m ? fl_nn_add(m, "embeddings", fl_nn_sequential_of(0, NULL)) : NULL;
    bool ok = parts != NULL;
    for (int p = 0; ok && p < cutoffs.ndim; p++) {
        const int64_t n = cutoffs.dim[p] - fl__nn_cluster_first(&a, p), d = fl__nn_cluster_dim(&a, p);
        fl_nn_module *table =
            fl_nn_embedding(n, d, .std = 1 / sqrt((double)d), .dtype = o.dtype, .rng = o.rng);
        fl_nn_module *wider = fl_nn_linear(d, dim, .no_bias = true, .dtype = o.dtype, .rng = o.rng);
        ok = fl_nn_add(parts, NULL, fl_nn_sequential(table, wider)) != NULL;
    }
    return fl_nn_finish(m, ok);
}

/* The class in the head of each word: itself, or that of its cluster. */
static fl_tensor *fl__nn_head_class(const fl__nn_adaptive *a, fl_tensor *words) {
    fl_tensor *y = words;
    for (int p = 1; p < a->cutoffs.ndim; p++) {
        fl_tensor *past = fl_ge(words, fl_int(fl__nn_cluster_first(a, p)));
        y = fl_where(past, fl_int(a->cutoffs.dim[0] + p - 1), y);
    }
    return y;
}

/* The log softmax of scores [k, c] at classes [k]. */
static fl_var *fl__nn_log_probability(fl_var *scores, fl_tensor *classes) {
    fl_var *logp = scores ? fv_log_softmax(scores, 1) : NULL;
    return fv_squeeze(fv_gather(logp, 1, fl_unsqueeze(classes, 1)), 1);
}

static fl_vars fl__nn_adaptive_softmax_forward(fl_nn_module *m, fl_vars in) {
    const fl__nn_adaptive *a = m->data;
    const fl_tensor *x = fv_value(in.v[0]);
    fl_tensor *words = fv_value(in.v[1]);
    if (x->ndim != 2 || x->shape[1] != a->dim || words->ndim != 1 ||
        words->shape[0] != x->shape[0]) {
        char s[FL_NN_SHAPE], t[FL_NN_SHAPE];
        return fl_nn_fail(m, "input %s, words %s, expected [k, %" PRId64 "] and [k]",
                          fl_nn_shape_text(in.v[0], s), fl_nn_shape_text(in.v[1], t), a->dim);
    }
    if (!fl__nn_words_ok(m, words)) return (fl_vars){0};
    fl_tensor *local, *rows = fl__nn_cluster_words(a, words, 0, &local);
    int64_t found = rows ? fl_numel(rows) : 0;
    fl_var *y = NULL;
    for (int p = 1; rows && p < a->cutoffs.ndim; p++) {
        rows = fl__nn_cluster_words(a, words, p, &local);
        if (!rows || !fl_numel(rows)) continue;
        found += fl_numel(rows);
        if (!y) y = fl__nn_log_probability(fl_nn_forward(m->child[0], in.v[0]), fl__nn_head_class(a, words));
        fl_var *part = fl_nn_forward(m->child[1]->child[p - 1], fv_index_select(in.v[0], 0, rows));
        y = fv_index_add(y, 0, rows, fl__nn_log_probability(part, local), 1);
    }
    if (!rows) return (fl_vars){0};
    if (found < x->shape[0]) return fl__nn_check_found(m, found, x->shape[0], in.v[0]);
    if (!y) y = fl__nn_log_probability(fl_nn_forward(m->child[0], in.v[0]), words);
    return FL_VARS(y);
}

static const fl_nn_type fl__nn_adaptive_softmax_type = {
    .name = "AdaptiveLogSoftmaxWithLoss",
    .maker = "fl_nn_adaptive_softmax",
    .inputs = 2,
    .forward = fl__nn_adaptive_softmax_forward,
    .describe = fl__nn_adaptive_describe,
};

FL_API fl_nn_module *fl_nn_adaptive_softmax_opt(int64_t dim, fl_shape cutoffs,
                                                fl_nn_adaptive_opts o) {
    const fl__nn_adaptive a = {dim, o.divide ? o.divide : 4, cutoffs};
    if (!fl__nn_adaptive_ok("fl_nn_adaptive_softmax", &a, o.dtype)) return fl_raise();
    fl_quiet(+1);
    fl_nn_module *m = fl_nn_new(&fl__nn_adaptive_softmax_type, &a, sizeof a);
    const int64_t classes = cutoffs.dim[0] + cutoffs.ndim - 1;
    fl_nn_module *head =
        fl_nn_linear(dim, classes, .no_bias = true, .dtype = o.dtype, .rng = o.rng);
    bool ok = m && fl_nn_add(m, "head", head);
    if (!m) fl_nn_free(head);
    fl_nn_module *tail = ok ? fl_nn_add(m, "tail", fl_nn_sequential_of(0, NULL)) : NULL;
    for (int p = 1; tail && ok && p < cutoffs.ndim; p++) {
        const int64_t n = cutoffs.dim[p] - fl__nn_cluster_first(&a, p), d = fl__nn_cluster_dim(&a, p);
        fl_nn_module *narrow =
            fl_nn_linear(dim, d, .no_bias = true, .dtype = o.dtype, .rng = o.rng);
        fl_nn_module *words = fl_nn_linear(d, n, .no_bias = true, .dtype = o.dtype, .rng = o.rng);
        ok = fl_nn_add(tail, NULL, fl_nn_sequential(narrow, words)) != NULL;
    }
    return fl_nn_finish(m, tail && ok);
}

#endif
#endif

/* MIT licence: see LICENSE. */
