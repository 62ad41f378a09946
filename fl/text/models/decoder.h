/* fl/text/models/decoder.h - incremental decoding of language models with a KV cache */
#ifndef FL_TEXT_MODELS_DECODER_H
#define FL_TEXT_MODELS_DECODER_H
#include "models.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Decodes several sequences ("texts") at once, each at its own position, and gives the scores of the next
   token. Results are those of fl_nn_forward in evaluation mode. For transformers keys and values are cached
   in one block and nothing is allocated from the second token on. Models of other kinds, and transformers
   with .uncached, recompute the whole sequence for each token. m is borrowed and must not change. */
typedef struct fl_text_decoder fl_text_decoder;
typedef struct fl_text_decoder_opts {
    fl_opts_guard guard_;
    int64_t length; /* tokens per sequence at most, 0 -> the context; not above it with learned positions */
    bool uncached;  /* recompute instead of caching keys and values */
    char _end;
} fl_text_decoder_opts;
/* A decoder for n sequences; returns NULL after an error. */
#define fl_text_decoder_new(...) FL_TEXT__DECODER_NEW(__VA_ARGS__, ._end = 0)
#define FL_TEXT__DECODER_NEW(m, n, ...) \
    fl_text_decoder_new_opt(m, n, FL_LITERAL(fl_text_decoder_opts, __VA_ARGS__))
FL_API fl_text_decoder *fl_text_decoder_new_opt(fl_nn_module *m, int64_t n, fl_text_decoder_opts o);
FL_API void fl_text_decoder_free(fl_text_decoder *d); /* NULL is fine */
/* Appends `rows` tokens: id[r] to sequence of[r]; rows of one sequence must be consecutive. The scores after
   the last row of each sequence are returned by fl_text_decoder_scores until the next call. Returns false
   after an error (a sequence is full, an id out of range, a score NaN); sequences are then unchanged. */
FL_API bool fl_text_decoder_read(fl_text_decoder *d, int64_t rows, const int64_t *of, const int64_t *id);
/* Scores [vocabulary] of sequence i; NULL if the last call appended nothing to it. */
FL_API const float *fl_text_decoder_scores(const fl_text_decoder *d, int64_t i);
FL_API int64_t fl_text_decoder_position(const fl_text_decoder *d, int64_t i); /* tokens of sequence i */
FL_API int64_t fl_text_decoder_vocabulary(const fl_text_decoder *d);
FL_API int64_t fl_text_decoder_sequences(const fl_text_decoder *d);  /* number of sequences */
FL_API int64_t fl_text_decoder_length(const fl_text_decoder *d); /* tokens per sequence at most */
/* Truncates sequence i to its first `place` tokens. */
FL_API bool fl_text_decoder_rewind(fl_text_decoder *d, int64_t i, int64_t position);
/* Copies sequence `from`, with its cache, to sequence `to`. */
FL_API bool fl_text_decoder_copy(fl_text_decoder *d, int64_t to, int64_t from);

#ifdef __cplusplus
}
#endif
#endif /* FL_TEXT_MODELS_DECODER_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TEXT_MODELS_DECODER) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TEXT_MODELS_DECODER_IMPL
#define FL_TEXT_MODELS_DECODER_IMPL
#include "../../ops/attention.h"
#include "../../ops/copy.h"
#include "../../ops/elementwise.h"
#include "../../ops/embedding.h"
#include "../../ops/linear.h"
#include "../../ops/view.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Weight and bias of a linear layer; bias NULL: none. */
typedef struct fl__lm_affine {
    fl_tensor *w, *b;
} fl__lm_affine;

/* Weight and bias of a norm, as host arrays. */
typedef struct fl__lm_scale {
    const float *w, *b;
} fl__lm_scale;

typedef struct fl__lm_block {
    fl__lm_affine in, out, up, gate, down;
    fl__lm_scale norm1, norm2;
    fl_tensor *k, *v; /* the cache [n, kv, length, columns] */
    float *pk, *pv;
} fl__lm_block;

struct fl_text_decoder {
    fl_nn_module *m;
    const fl_text_lm_opts *o;
    int64_t n, length, vocabulary, kv, columns; /* columns: head dimension */
    int64_t *position, *row; /* per sequence: position; row of its scores, -1: none */
    int64_t *id;          /* uncached: [n, length] */
    fl__lm_block *block; /* per layer; NULL: uncached */
    fl__lm_scale norm, norm_in;
    float *sinusoids;         /* cos and sin [length, columns / 2, 2]; sinusoids [length, dim]; or NULL */
    float *scores;        /* [n, vocabulary] */
    fl_tensor **mapped;     /* tensors mapped until the decoder is freed */
    int64_t n_mapped, cap;
};

/* ---- construction ---- */

FL_API void fl_text_decoder_free(fl_text_decoder *d) {
    if (!d) return;
    for (int64_t i = 0; i < d->n_mapped; i++)
        fl_unmap(d->mapped[i], FL_READ | FL_WRITE), fl_drop(d->mapped[i]);
    fl_heap_free(d->mapped);
    fl_heap_free(d->position);
    fl_heap_free(d->row);
    fl_heap_free(d->id);
    fl_heap_free(d->block);
    fl_heap_free(d->sinusoids);
    fl_heap_free(d->scores);
    fl_heap_free(d);
}

/* Maps t until the decoder is freed and returns its elements; NULL after an error. */
static float *fl__lm_map(fl_text_decoder *d, fl_tensor *t) {
    if (!t || !fl_heap_grow(&d->mapped, &d->cap, d->n_mapped + 1, sizeof *d->mapped)) return NULL;
    float *p = fl_map(t, FL_READ | FL_WRITE);
    if (p) d->mapped[d->n_mapped++] = fl_keep(t);
    return p;
}

static bool fl__lm_take_scale(fl_text_decoder *d, fl_nn_module *norm, fl__lm_scale *out) {
    for (int i = 0; i < 2; i++) {
        fl_var *p = fl_nn_param_at(norm, i);
        const float *at = p ? fl__lm_map(d, fl_clone(fl_cast(fv_value(p), FL_F32))) : NULL;
        if (p && !at) return false;
        *(i ? &out->b : &out->w) = at;
    }
    return true;
}

static void fl__lm_take_affine(fl_nn_module *m, const char *weight, const char *bias, fl__lm_affine *out) {
    fl_var *w = fl_nn_get_param(m, weight), *b = fl_nn_get_param(m, bias);
    out->w = w ? fv_value(w) : NULL, out->b = b ? fv_value(b) : NULL;
}

static bool fl__lm_take_block(fl_text_decoder *d, fl_nn_module *layer, fl__lm_block *b) {
    fl__lm_take_affine(layer, "self_attn.in_proj_weight", "self_attn.in_proj_bias", &b->in);
    fl__lm_take_affine(layer, "self_attn.out_proj.weight", "self_attn.out_proj.bias", &b->out);
    fl__lm_take_affine(layer, "linear1.weight", "linear1.bias", &b->up);
    fl__lm_take_affine(layer, "gate.weight", "gate.bias", &b->gate);
    fl__lm_take_affine(layer, "linear2.weight", "linear2.bias", &b->down);
    const fl_shape cache = FL_SHAPE(d->n, d->kv, d->length, d->columns);
    b->k = fl_zeros(cache, FL_F32), b->v = fl_zeros(cache, FL_F32);
    b->pk = fl__lm_map(d, b->k), b->pv = fl__lm_map(d, b->v);
    return b->pk && b->pv && fl__lm_take_scale(d, fl_nn_find(layer, "norm1"), &b->norm1) &&
           fl__lm_take_scale(d, fl_nn_find(layer, "norm2"), &b->norm2);
}

/* Precomputes the angles of fl_rotary or the values of fl_nn_sinusoid. */
static bool fl__lm_fill_sinusoids(fl_text_decoder *d) {
    const bool rotary = d->o->place == FL_LM_ROTARY;
    const int64_t dim = rotary ? d->columns : d->o->dim;
    if (!rotary && d->o->place != FL_LM_SINUSOID) return true;
    if (!(d->sinusoids = fl_heap_alloc((size_t)(d->length * dim) * sizeof *d->sinusoids))) return false;
    fl_rotary_opts rope = rotary ? d->o->rope : (fl_rotary_opts){.base = 0};
    rope.dim = dim;
    const double gain = fl_rotary_attention_factor(&rope);
    for (int64_t j = 0; j < dim; j++) {
        const double turn = fl_rotary_frequency(&rope, j / 2);
        for (int64_t t = 0; t < d->length; t++) {
            const double w = (double)t * turn;
            d->sinusoids[t * dim + j] = (float)(gain * ((j & 1) == rotary ? sin(w) : cos(w)));
        }
    }
    return true;
}

static bool fl__lm_decoder_fill(fl_text_decoder *d, bool uncached) {
    const size_t n = (size_t)d->n;
    d->position = fl_heap_alloc(n * sizeof *d->position);
    d->row = fl_heap_alloc(n * sizeof *d->row);
    d->scores = fl_heap_alloc(n * (size_t)d->vocabulary * sizeof *d->scores);
    if (!d->position || !d->row || !d->scores) return false;
    for (int64_t i = 0; i < d->n; i++) d->row[i] = -1;
    if (uncached || d->o->kind != FL_LM_TRANSFORMER)
        return (d->id = fl_heap_alloc(n * (size_t)d->length * sizeof *d->id)) != NULL;
    if (d->o->bidirectional)
        return fl_fail("fl_text_decoder_new: the model is bidirectional, expected a causal one");
    d->block = fl_heap_alloc((size_t)d->o->layers * sizeof *d->block);
    fl_nn_module *layers = fl_nn_find(d->m, "layers"), *norm = fl_nn_find(d->m, "norm");
    fl_nn_module *norm_in = fl_nn_find(d->m, "norm_in");
    bool ok = d->block && fl__lm_fill_sinusoids(d) && (!norm || fl__lm_take_scale(d, norm, &d->norm)) &&
              (!norm_in || fl__lm_take_scale(d, norm_in, &d->norm_in));
    for (int64_t i = 0; ok && i < d->o->layers; i++)
        ok = fl__lm_take_block(d, layers->child[i], &d->block[i]);
    return ok;
}

FL_API fl_text_decoder *fl_text_decoder_new_opt(fl_nn_module *m, int64_t n, fl_text_decoder_opts o) {
    int64_t vocabulary = 0;
    const fl_text_lm_opts *info = m ? fl_text_lm_info(m, &vocabulary) : NULL;
    if (!info) return m ? NULL : fl_err_null("fl_text_decoder_new: the model is NULL");
    const bool learned = info->kind == FL_LM_TRANSFORMER && info->place == FL_LM_LEARNED;
    if (!o.length) o.length = info->context;
    if (n < 1 || n > INT32_MAX || o.length < 1 || o.length > INT32_MAX ||
        (learned && o.length > info->context))
        return fl_err_null("fl_text_decoder_new: n (%" PRId64 ") and length (%" PRId64
                           ") must be >= 1, and length at most %" PRId64 " with learned positions",
                           n, o.length, info->context);
    fl_text_decoder *d = fl_heap_alloc(sizeof *d);
    if (!d) return fl_raise();
    d->m = m, d->o = info, d->n = n, d->length = o.length, d->vocabulary = vocabulary;
    d->columns = info->dim / info->heads, d->kv = info->kv_heads ? info->kv_heads : info->heads;
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    const bool ok = fl__lm_decoder_fill(d, o.uncached);
    fl_scope_end(&s);
    fl_quiet(-1);
    if (ok) return d;
    fl_text_decoder_free(d);
    return fl_raise();
}

/* ---- parts of a step, on rows ---- */

static void fl__lm_norm_row(const fl_text_lm_opts *o, const fl__lm_scale *s, const float *x, float *y) {
    const int64_t n = o->dim;
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i], squares += (double)x[i] * x[i];
    const double mean = o->rms ? 0 : sum / (double)n;
    if (!o->rms) {
        squares = 0;
        for (int64_t i = 0; i < n; i++) squares += (x[i] - mean) * (x[i] - mean);
    }
    const float shift = (float)mean, factor = (float)(1 / sqrt(squares / (double)n + o->eps));
    for (int64_t i = 0; i < n; i++) y[i] = (x[i] - shift) * factor * s->w[i];
    for (int64_t i = 0; s->b && i < n; i++) y[i] += s->b[i];
}

/* Applies the rotary embedding to one head. */
static void fl__lm_rotate(const fl_text_decoder *d, float *x, int64_t position) {
    const int64_t half = d->columns / 2, step = d->o->rope.interleaved ? 2 : 1;
    const int64_t other = d->o->rope.interleaved ? 1 : half;
    const float *w = d->sinusoids + position * d->columns;
    for (int64_t j = 0; j < half; j++) {
        const float a = x[j * step], b = x[j * step + other], c = w[2 * j], s = w[2 * j + 1];
        x[j * step] = a * c - b * s, x[j * step + other] = a * s + b * c;
    }
}

typedef struct fl__lm_rows {
    int64_t n;
    const int64_t *of, *id;
    int64_t *position; /* position of each row */
} fl__lm_rows;

/* Writes keys and values to the cache, with queries and keys rotated. qkv: [n, heads + 2 kv, columns]. */
static void fl__lm_store(fl_text_decoder *d, const fl__lm_block *b, const fl__lm_rows *r, float *qkv) {
    const int64_t heads = d->o->heads, c = d->columns, width = (heads + 2 * d->kv) * c;
    for (int64_t i = 0; i < r->n; i++, qkv += width) {
        for (int64_t h = 0; d->o->place == FL_LM_ROTARY && h < heads + d->kv; h++)
            fl__lm_rotate(d, qkv + h * c, r->position[i]);
        for (int64_t h = 0; h < d->kv; h++) {
            const int64_t at = ((r->of[i] * d->kv + h) * d->length + r->position[i]) * c;
            memcpy(b->pk + at, qkv + (heads + h) * c, (size_t)c * sizeof(float));
            memcpy(b->pv + at, qkv + (heads + d->kv + h) * c, (size_t)c * sizeof(float));
        }
    }
}

/* Attention of rows first to last - 1, of one sequence: to y [n, heads columns]. */
static bool fl__lm_attend(fl_text_decoder *d, const fl__lm_block *b, const fl__lm_rows *r, fl_tensor *qkv,
                          int64_t first, int64_t last, float *y) {
    const int64_t heads = d->o->heads, c = d->columns, width = (heads + 2 * d->kv) * c, n = last - first;
    const int64_t q_step[] = {c, width, 1}, k_step[] = {d->length * c, c, 1}, seen = r->position[first] + n;
    const int64_t at = r->of[first] * d->kv * d->length * c;
    fl_scope s = fl_scope_begin();
    fl_tensor *q = fl_as_strided(qkv, FL_SHAPE(heads, n, c), q_step, first * width);
    fl_tensor *k = fl_as_strided(b->k, FL_SHAPE(d->kv, seen, c), k_step, at);
    fl_tensor *v = fl_as_strided(b->v, FL_SHAPE(d->kv, seen, c), k_step, at);
    fl_tensor *out = q && k && v ? fl_attention(q, k, v, .causal = true, .offset = r->position[first],
                                                .window = d->o->window) : NULL;
    const float *p = out ? fl_map(out, FL_READ) : NULL;
    for (int64_t h = 0; p && h < heads; h++)
        for (int64_t i = 0; i < n; i++)
            memcpy(y + ((first + i) * heads + h) * c, p + h * out->stride[0] + i * out->stride[1],
                   (size_t)c * sizeof(float));
    if (p) fl_unmap(out, FL_READ);
    fl_scope_end(&s);
    return p != NULL;
}

/* y = act(x w^T + b), and its elements. */
static fl_tensor *fl__lm_linear(fl_tensor *x, const fl__lm_affine *a, fl_op act, float **p) {
    fl_tensor *y = x ? fl_linear_act(x, a->w, a->b, act) : NULL;
    *p = y ? fl_map(y, FL_READ | FL_WRITE) : NULL;
    return *p ? y : NULL;
}

/* x + y, followed by the norm in post-norm models. */
static void fl__lm_residual(const fl_text_decoder *d, const fl__lm_scale *norm, float *x, const float *y,
                            int64_t n) {
    const int64_t dim = d->o->dim;
    for (int64_t i = 0; i < n * dim; i++) x[i] += y[i];
    for (int64_t i = 0; d->o->post_norm && i < n; i++) fl__lm_norm_row(d->o, norm, x + i * dim, x + i * dim);
}

static void fl__lm_before(const fl_text_decoder *d, const fl__lm_scale *norm, const float *x, float *y,
                          int64_t n) {
    const int64_t dim = d->o->dim;
    if (d->o->post_norm) memcpy(y, x, (size_t)(n * dim) * sizeof *y);
    else for (int64_t i = 0; i < n; i++) fl__lm_norm_row(d->o, norm, x + i * dim, y + i * dim);
}

static bool fl__lm_mlp(fl_text_decoder *d, const fl__lm_block *b, fl_tensor *h, float *x, int64_t n) {
    const fl_op act = fv_linear_act_of(d->o->activation);
    float *up, *gate, *down;
    fl_tensor *u = fl__lm_linear(h, &b->up, b->gate.w ? FL_OP_NONE : act, &up);
    if (u && b->gate.w) {
        fl_tensor *g = fl__lm_linear(h, &b->gate, act, &gate);
        const int64_t all = n * d->o->hidden;
        for (int64_t i = 0; g && i < all; i++) up[i] *= gate[i];
        if (!g) return false;
        fl_unmap(g, FL_READ | FL_WRITE);
    }
    if (!u) return false;
    fl_unmap(u, FL_READ | FL_WRITE);
    fl_tensor *y = fl__lm_linear(u, &b->down, FL_OP_NONE, &down);
    if (!y) return false;
    fl__lm_residual(d, &b->norm2, x, down, n);
    fl_unmap(y, FL_READ | FL_WRITE);
    return true;
}

/* One layer on x [n, dim]; h and a are workspace tensors of as many rows, ph and pa their elements. */
static bool fl__lm_block_run(fl_text_decoder *d, const fl__lm_block *b, const fl__lm_rows *r, float *x,
                             fl_tensor *h, float *ph) {
    float *p, *y;
    fl__lm_before(d, &b->norm1, x, ph, r->n);
    fl_tensor *qkv = fl__lm_linear(h, &b->in, FL_OP_NONE, &p);
    if (!qkv) return false;
    fl__lm_store(d, b, r, p);
    fl_unmap(qkv, FL_READ | FL_WRITE);
    for (int64_t first = 0, last; first < r->n; first = last) {
        last = first + 1;
        while (last < r->n && r->of[last] == r->of[first]) last++;
        if (!fl__lm_attend(d, b, r, qkv, first, last, ph)) return false;
    }
    fl_tensor *out = fl__lm_linear(h, &b->out, FL_OP_NONE, &y);
    if (!out) return false;
    fl__lm_residual(d, &b->norm1, x, y, r->n);
    fl_unmap(out, FL_READ | FL_WRITE);
    fl__lm_before(d, &b->norm2, x, ph, r->n);
    return fl__lm_mlp(d, b, h, x, r->n);
}

/* Token and position embeddings. */
static bool fl__lm_rows_embed(fl_text_decoder *d, const fl__lm_rows *r, float *x) {
    const int64_t dim = d->o->dim;
    fl_tensor *ids = fl_from_host(r->id, FL_SHAPE(r->n), FL_I64);
    fl_var *rows = ids ? fl_text_embed(d->m, fv_const(ids)) : NULL;
    fl_tensor *t = rows ? fl_contiguous(fl_cast(fv_value(rows), FL_F32)) : NULL;
    if (!t || !fl_to_host(t, x, (size_t)(r->n * dim) * sizeof *x)) return false;
    fl_nn_module *position = fl_nn_find(d->m, "position");
    const bool learned = d->o->place == FL_LM_LEARNED;
    fl_tensor *table = learned ? fv_value(fl_nn_param_at(position, 0)) : NULL;
    const float *w = learned ? fl_map(table, FL_READ) : d->o->place == FL_LM_SINUSOID ? d->sinusoids : NULL;
    for (int64_t i = 0; i < r->n; i++) {
        for (int64_t k = 0; k < dim; k++) x[i * dim + k] *= (float)d->o->embedding_scale;
        for (int64_t k = 0; w && k < dim; k++) x[i * dim + k] += w[r->position[i] * dim + k];
        if (d->norm_in.w) fl__lm_norm_row(d->o, &d->norm_in, x + i * dim, x + i * dim);
    }
    if (learned) fl_unmap(table, FL_READ);
    return true;
}

/* Scores of the last row of each sequence. */
static bool fl__lm_rows_score(fl_text_decoder *d, const fl__lm_rows *r, const float *x) {
    const int64_t dim = d->o->dim;
    int64_t n = 0;
    for (int64_t i = 0; i < r->n; i++) n += i + 1 == r->n || r->of[i + 1] != r->of[i];
    fl_tensor *last = fl_empty(FL_SHAPE(n, dim), FL_F32);
    float *p = last ? fl_map(last, FL_WRITE) : NULL;
    if (!p) return false;
    for (int64_t i = 0; i < r->n; i++) {
        if (i + 1 < r->n && r->of[i + 1] == r->of[i]) continue;
        if (d->norm.w) fl__lm_norm_row(d->o, &d->norm, x + i * dim, p);
        else memcpy(p, x + i * dim, (size_t)dim * sizeof *p);
        p += dim;
    }
    fl_unmap(last, FL_WRITE);
    fl_var *y = fl_text_scores(d->m, fv_const(last));
    return y &&
           fl_to_host(fl_cast(fv_value(y), FL_F32), d->scores, (size_t)(n * d->vocabulary) * sizeof(float));
}

static bool fl__lm_rows_run(fl_text_decoder *d, const fl__lm_rows *r) {
    const int64_t dim = d->o->dim;
    fl_tensor *x = fl_empty(FL_SHAPE(r->n, dim), FL_F32), *h = fl_empty(FL_SHAPE(r->n, dim), FL_F32);
    float *px = x ? fl_map(x, FL_READ | FL_WRITE) : NULL, *ph = h ? fl_map(h, FL_READ | FL_WRITE) : NULL;
    bool ok = px && ph && fl__lm_rows_embed(d, r, px);
    for (int64_t i = 0; ok && i < d->o->layers; i++) {
        fl_scope s = fl_scope_begin();
        ok = fl__lm_block_run(d, &d->block[i], r, px, h, ph);
        fl_scope_end(&s);
    }
    ok = ok && fl__lm_rows_score(d, r, px);
    if (px) fl_unmap(x, FL_READ | FL_WRITE);
    if (ph) fl_unmap(h, FL_READ | FL_WRITE);
    return ok;
}

/* The same without a cache: a forward call on each whole sequence. */
static bool fl__lm_rows_uncached(fl_text_decoder *d, const fl__lm_rows *r) {
    for (int64_t i = 0, k = 0; i < r->n; i++) {
        int64_t *id = d->id + r->of[i] * d->length, n = r->position[i] + 1;
        id[n - 1] = r->id[i];
        if (i + 1 < r->n && r->of[i + 1] == r->of[i]) continue;
        fl_scope s = fl_scope_begin();
        fl_tensor *x = fl_from_host(id, FL_SHAPE(1, n), FL_I64);
        fl_var *y = x ? fl_text_features(d->m, FL_VARS(fv_const(x))) : NULL;
        y = y ? fl_text_scores(d->m, fv_slice(y, 1, n - 1, n, 1)) : NULL;
        const size_t bytes = (size_t)d->vocabulary * sizeof(float);
        const bool ok = y && fl_to_host(fl_cast(fv_value(y), FL_F32), d->scores + k++ * d->vocabulary, bytes);
        fl_scope_end(&s);
        if (!ok) return false;
    }
    return true;
}

/* ---- decoding ---- */

/* Checks the rows and sets their positions. */
static bool fl__lm_rows_ok(const fl_text_decoder *d, fl__lm_rows *r) {
    for (int64_t i = 0; i < r->n; i++) {
        const int64_t of = r->of[i];
        if (of < 0 || of >= d->n || r->id[i] < 0 || r->id[i] >= d->vocabulary)
            return fl_fail("fl_text_decoder_read: row %" PRId64 " is out of range: got id %" PRId64
                           " of sequence %" PRId64 ", expected ids < %" PRId64 ", sequences < %" PRId64,
                           i, r->id[i], of, d->vocabulary, d->n);
        const bool same = i && r->of[i - 1] == of;
        r->position[i] = same ? r->position[i - 1] + 1 : d->position[of];
        if (r->position[i] >= d->length)
            return fl_fail("fl_text_decoder_read: sequence %" PRId64 " is full: length is %" PRId64 " tokens",
                           of,
                           d->length);
        for (int64_t k = 0; !same && k < i; k++)
            if (r->of[k] == of)
                return fl_fail("fl_text_decoder_read: rows of a sequence must be consecutive: got rows %"
                               PRId64 " and %" PRId64 " of sequence %" PRId64, k, i, of);
    }
    return true;
}

static bool fl__lm_scores_ok(const fl_text_decoder *d, const fl__lm_rows *r) {
    int64_t rows = 0;
    for (int64_t i = 0; i < r->n; i++) {
        if (i + 1 < r->n && r->of[i + 1] == r->of[i]) continue;
        const float *p = d->scores + rows++ * d->vocabulary;
        for (int64_t k = 0; k < d->vocabulary; k++)
            if (isnan(p[k]))
                return fl_fail("fl_text_decoder_read: the score of id %" PRId64 " after token %" PRId64
                               " of sequence %" PRId64 " is NaN", k, r->position[i], r->of[i]);
    }
    return true;
}

FL_API bool fl_text_decoder_read(fl_text_decoder *d, int64_t rows, const int64_t *of, const int64_t *id) {
    if (!d || rows < 1 || rows > INT32_MAX || !of || !id)
        return fl_err_false("fl_text_decoder_read: rows must be >= 1: got %" PRId64
                            ", or d, of or id is NULL", rows);
    int64_t few[64];
    fl__lm_rows r = {rows, of, id, rows <= 64 ? few : fl_heap_alloc((size_t)rows * sizeof *few)};
    const bool train = d->m->train;
    fl_quiet(+1);
    fl_scope s = fl_scope_begin();
    fl_no_grad(true);
    if (train) fl_nn_train(d->m, false);
    const bool ok = r.position && fl__lm_rows_ok(d, &r) &&
                    (d->block ? fl__lm_rows_run(d, &r) : fl__lm_rows_uncached(d, &r)) &&
                    fl__lm_scores_ok(d, &r);
    if (train) fl_nn_train(d->m, true);
    fl_scope_end(&s);
    fl_quiet(-1);
    int64_t row = 0;
    for (int64_t i = 0; i < d->n; i++) d->row[i] = -1;
    for (int64_t i = 0; ok && i < rows; i++) {
        d->position[of[i]] = r.position[i] + 1;
        if (i + 1 == rows || of[i + 1] != of[i]) d->row[of[i]] = row++;
    }
    if (r.position != few) fl_heap_free(r.position);
    return ok || fl_raise();
}

FL_API const float *fl_text_decoder_scores(const fl_text_decoder *d, int64_t i) {
    if (!fl_given(d, "fl_text_decoder_scores", "the decoder")) return NULL;
    return i >= 0 && i < d->n && d->row[i] >= 0 ? d->scores + d->row[i] * d->vocabulary : NULL;
}

FL_API int64_t fl_text_decoder_position(const fl_text_decoder *d, int64_t i) {
    return d && i >= 0 && i < d->n ? d->position[i] : 0;
}

FL_API int64_t fl_text_decoder_vocabulary(const fl_text_decoder *d) { return d ? d->vocabulary : 0; }
FL_API int64_t fl_text_decoder_sequences(const fl_text_decoder *d) { return d ? d->n : 0; }
FL_API int64_t fl_text_decoder_length(const fl_text_decoder *d) { return d ? d->length : 0; }

FL_API bool fl_text_decoder_rewind(fl_text_decoder *d, int64_t i, int64_t position) {
    if (!d || i < 0 || i >= d->n || position < 0 || position > d->position[i])
        return fl_err_false("fl_text_decoder_rewind: sequence or position is out of range: got sequence %"
                            PRId64 ", position %" PRId64 " of %" PRId64, i, position,
                            fl_text_decoder_position(d, i));
    d->position[i] = position, d->row[i] = -1;
    return true;
}

FL_API bool fl_text_decoder_copy(fl_text_decoder *d, int64_t to, int64_t from) {
    if (!d || to < 0 || from < 0 || to >= d->n || from >= d->n)
        return fl_err_false("fl_text_decoder_copy: sequence is out of range: got %" PRId64 " to %" PRId64
                            ", expected [0, %" PRId64 ")", from, to, d ? d->n : 0);
    if (to == from) return true;
    const size_t bytes = (size_t)(d->position[from] * d->columns) * sizeof(float);
    for (int64_t i = 0; d->block && i < d->o->layers; i++)
        for (int64_t h = 0; h < d->kv; h++) {
            const int64_t a = (to * d->kv + h) * d->length * d->columns;
            const int64_t b = (from * d->kv + h) * d->length * d->columns;
            memcpy(d->block[i].pk + a, d->block[i].pk + b, bytes);
            memcpy(d->block[i].pv + a, d->block[i].pv + b, bytes);
        }
    if (d->id)
        memcpy(d->id + to * d->length, d->id + from * d->length, (size_t)d->position[from] * sizeof *d->id);
    d->position[to] = d->position[from], d->row[to] = d->row[from];
    return true;
}

#endif
#endif

/* MIT licence: see LICENSE. */
