/* fl/ops/position.h - what tells attention where its queries and keys stand: rotary positions, and
   masks by length and by distance */
#ifndef FL_T
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_POSITION_H
#define FL_OPS_POSITION_H

#ifdef __cplusplus
extern "C" {
#endif

/* Rotary positions (arXiv 2104.09864): row i of x [..., t, d] stands at p = scale (offset + i); its pair
   (a, b) number j becomes (a cos w - b sin w, a sin w + b cos w), w = p base^(-2 j / dim). */
typedef enum fl_rotary_kind { FL_ROTARY_LINEAR, FL_ROTARY_LLAMA3, FL_ROTARY_YARN } fl_rotary_kind;
typedef struct fl_rotary_opts {
    fl_named _positional;
    double base;      /* 0: 10000 */
    int64_t offset;   /* place of row 0, as after a cache of that many */
    double scale;     /* of positions, 0: 1; 1 / 4 reads four times the length trained for (linear) */
    fl_rotary_kind kind; /* which pairs are scaled, by how often they turn within the length trained for:
                            LINEAR all; LLAMA3 (Llama 3.1) those that turn fewer than `low` times, and those
                            between low and high in part; YARN (arXiv 2309.00071) the same along the numbers
                            of pairs, and all is multiplied by 1 + 0.1 log(1 / scale) */
    double low, high; /* 0: 1 and 4; YARN 1 and 32 */
    int64_t trained;  /* that length; LLAMA3, YARN */
    int64_t dim;      /* the first dim of d columns turn, the others stay; even; 0: d */
    bool interleaved; /* pairs are columns 2 j and 2 j + 1 (GPT-J, Meta's Llama); else j and j + dim / 2
                         (GPT-NeoX, Hugging Face) */
    char _end;
} fl_rotary_opts;
#define fl_rotary(...) FL__ROTARY(fl_, __VA_ARGS__, ._end = 0)
#define fv_rotary(...) FL__ROTARY(fv_, __VA_ARGS__, ._end = 0)
#define FL__ROTARY(p, x, ...) p##rotary_opt(x, (fl_rotary_opts){__VA_ARGS__})
FL_API fl_tensor *fl_rotary_opt(fl_tensor *x, fl_rotary_opts o);
FL_API fl_var *fv_rotary_opt(fl_var *x, fl_rotary_opts o);
/* The angle of pair j of o->dim columns, from place to place;  what all results are multiplied by. */
FL_API double fl_rotary_turn(const fl_rotary_opts *o, int64_t j);
FL_API double fl_rotary_gain(const fl_rotary_opts *o);

/* Masks for the above, on the default backend. m keys, n queries from place offset on. */
/* b8 [batch, 1, 1, m]: true for the first lengths[i] keys of sequence i; lengths i64 [batch], 1 to m each. */
FL_API fl_tensor *fl_length_mask(fl_tensor *lengths, int64_t m);
/* f32 [heads, n, m], ALiBi (arXiv 2108.12409): -slope |offset + i - j|, slopes 2^(-8 h / heads) for h from 1
   where heads is a power of two, with every other one of twice as many behind them where it is not. */
FL_API fl_tensor *fl_alibi(int64_t heads, int64_t n, int64_t m, int64_t offset);
/* i64 [n, m]: which of `buckets` the distance j - (offset + i) falls into, as T5 (arXiv 1910.10683): half of
   them (of each direction's) exact, the others logarithmic up to `most`, beyond which all are one. Both
   directions have half the buckets each, or (causal) keys ahead are in bucket 0. */
FL_API fl_tensor *fl_relative_buckets(int64_t n, int64_t m, int64_t offset, int64_t buckets, int64_t most,
                                      bool causal);
/* What relative positions add to scores (arXiv 1803.02155): of q [..., n, d] and one row per distance,
   table [2 c - 1, d], -> [..., n, m] = q_i . table[c - 1 + j - (offset + i)]; distances beyond c - 1 are
   taken as that. */
FL_API fl_tensor *fl_relative_scores(fl_tensor *q, fl_tensor *table, int64_t m, int64_t offset);
FL_API fl_var *fv_relative_scores(fl_var *q, fl_var *table, int64_t m, int64_t offset);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_POSITION_H */

#if defined(FL_IMPL_ONLY_OPS_POSITION) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_POSITION_IMPL
#define FL_OPS_POSITION_IMPL
#include "../../fl_autograd.h"
#include "copy.h"
#include "create.h"
#include "elementwise.h"
#include "index.h"
#include "linear.h"
#include "reduce.h"
#include "view.h"
#include <float.h>
#include <inttypes.h>
#include <math.h>
#define FL_TEXT "position.h"
#include "expand.h"
#endif /* FL_OPS_POSITION_IMPL */
#endif
#else /* the text: see expand.h */

#ifdef FL_ON_TENSORS
/* ---- rotary positions ---- */

/* The number of a pair, whole or not, that turns so often within the length trained for. */
static double fl__rotary_pair(const fl_rotary_opts *o, double turns) {
    return (double)o->dim * log((double)o->trained / (turns * 2 * acos(-1))) /
           (2 * log(fl_option(o->base, 10000)));
}

/* How much of the scale pair j takes, 0 to 1. */
static double fl__rotary_share(const fl_rotary_opts *o, int64_t j, double plain) {
    const double low = fl_option(o->low, 1), high = fl_option(o->high, o->kind == FL_ROTARY_YARN ? 32 : 4);
    double share;
    if (o->kind == FL_ROTARY_LLAMA3)
        share = (high - (double)o->trained * plain / (2 * acos(-1))) / (high - low);
    else {
        const double first = fmax(floor(fl__rotary_pair(o, high)), 0);
        const double last = fmin(ceil(fl__rotary_pair(o, low)), (double)(o->dim - 1));
        share = ((double)j - first) / (last > first ? last - first : 0.001);
    }
    return fmin(fmax(share, 0), 1);
}

double fl_rotary_turn(const fl_rotary_opts *o, int64_t j) {
    const double plain = pow(fl_option(o->base, 10000), -2.0 * (double)j / (double)o->dim);
    const double scale = fl_option(o->scale, 1);
    if (o->kind == FL_ROTARY_LINEAR) return plain * scale;
    const double share = fl__rotary_share(o, j, plain);
    return plain * (share * scale + 1 - share);
}

double fl_rotary_gain(const fl_rotary_opts *o) {
    const double scale = fl_option(o->scale, 1);
    return o->kind == FL_ROTARY_YARN && scale < 1 ? 1 - 0.1 * log(scale) : 1;
}

/* Resolves what is 0; false after an error. */
static bool fl__rotary_settings(const fl_tensor *x, fl_rotary_opts *o) {
    const int64_t columns = x->ndim ? x->shape[x->ndim - 1] : 0;
    if (o->base == 0) o->base = 10000;
    if (o->scale == 0) o->scale = 1;
    if (o->dim == 0) o->dim = columns;
    if (x->weak || x->ndim < 2 || o->dim < 0 || o->dim % 2 || o->dim > columns)
        return fl_refuse("fl_rotary: %s, dim %" PRId64 "; wants [..., t, d] and an even dim of at most d",
                         FL_SHAPE_TEXT(x), o->dim);
    const bool plain = o->kind == FL_ROTARY_LINEAR;
    return (o->base > 0 && o->base <= DBL_MAX && fabs(o->scale) <= DBL_MAX && o->offset >= 0 &&
            (unsigned)o->kind <= FL_ROTARY_YARN && (plain || (o->trained > 0 && o->scale > 0))) ||
           fl_refuse("fl_rotary: base %g, scale %g, offset %" PRId64 ", kind %d, trained for %" PRId64,
                     o->base, o->scale, o->offset, (int)o->kind, o->trained);
}

/* Cosines, or sines, of the angles [t, dim / 2], beside x. They are made in f64: a place times a
   frequency in f32 is wrong in the third digit at 10^5. */
static fl_tensor *fl__rotary_turns(const fl_tensor *x, const fl_rotary_opts *o, bool sines) {
    const int64_t t = x->shape[x->ndim - 2], half = o->dim / 2;
    fl_tensor *place = fl_arange((double)o->offset, (double)(o->offset + t), 1, FL_F64);
    fl_tensor *w = fl_empty(FL_SHAPE(half), FL_F64);
    double *turn = w && half ? fl_map(w, FL_WRITE) : NULL;
    for (int64_t j = 0; turn && j < half; j++) turn[j] = fl_rotary_turn(o, j);
    if (turn) fl_unmap(w, FL_WRITE);
    else if (half) return NULL;
    fl_tensor *angle = fl_mul(fl_unsqueeze(place, 1), w), *y = sines ? fl_sin(angle) : fl_cos(angle);
    if (fl_rotary_gain(o) != 1) y = fl_mul(y, fl_num(fl_rotary_gain(o)));
    y = y ? fl_cast(y, fl_dtype_wide(x->dtype)) : NULL;
    return y ? fl_to(y, fl_backend_name(x)) : NULL;
}
#endif

FL_T *FL_W(rotary_opt)(FL_T *x, fl_rotary_opts o) {
    if (FL_ABSENT("rotary", x) || !fl__rotary_settings(FL_VALUE(x), &o)) return NULL;
    fl_scope s = fl_scope_begin();
    FL_T *wide = FL_W(_widened)(x), *y = NULL;
    const int64_t d = o.dim, columns = FL_VALUE(x)->shape[FL_VALUE(x)->ndim - 1];
    const int64_t half = o.interleaved ? 1 : d / 2, step = o.interleaved ? 2 : 1;
    FL_T *a = FL_W(slice)(wide, -1, 0, o.interleaved ? d : half, step);
    FL_T *b = FL_W(slice)(wide, -1, o.interleaved && d ? 1 : half, d, step);
    if (!wide) return FL_GIVE(&s, NULL);
    FL_T *cosines = FL_OF(fl__rotary_turns(FL_VALUE(wide), &o, false));
    FL_T *sines = FL_OF(fl__rotary_turns(FL_VALUE(wide), &o, true));
    FL_T *parts[] = {SUB(MUL(a, cosines), MUL(b, sines)), ADD(MUL(a, sines), MUL(b, cosines)), NULL};
    if (parts[0] && parts[1] && o.interleaved)
        parts[0] = FL_W(flatten)(FL_W(stack)(parts, 2, -1), -2, -1);
    const int turned = o.interleaved ? 1 : 2;
    parts[turned] = d < columns ? FL_W(slice)(wide, -1, d, columns, 1) : NULL;
    const int n = d < columns ? turned + 1 : turned;
    y = n > 1 ? FL_W(concat)(parts, n, -1) : parts[0];
    return FL_GIVE(&s, y ? FL_W(_narrowed)(y, x) : NULL);
}

/* ---- distances ---- */

#ifdef FL_ON_TENSORS
static bool fl__lengths_ok(const char *fn, int64_t n, int64_t m, int64_t offset) {
    return (n >= 0 && m >= 0 && offset >= 0) ||
           fl_refuse("%s: %" PRId64 " queries from %" PRId64 ", %" PRId64 " keys", fn, n, offset, m);
}

/* j - (offset + i), i64 [n, m] */
static fl_tensor *fl__distances(int64_t n, int64_t m, int64_t offset) {
    fl_tensor *key = fl_arange(0, (double)m, 1, FL_I64);
    fl_tensor *query = fl_arange((double)offset, (double)(offset + n), 1, FL_I64);
    return fl_sub(key, fl_unsqueeze(query, 1));
}

fl_tensor *fl_length_mask(fl_tensor *lengths, int64_t m) {
    if (fl_absent("fl_length_mask", lengths)) return NULL;
    if (lengths->weak || lengths->dtype != FL_I64 || lengths->ndim != 1)
        return fl_bad("fl_length_mask: lengths %s %s, want i64 [batch]", fl_dtype_name(lengths->dtype),
                      FL_SHAPE_TEXT(lengths));
    fl_scope s = fl_scope_begin();
    fl_tensor *y = NULL, *least = lengths->shape[0] ? fl_amin(lengths, FL_ALL_AXES) : fl_int(1);
    fl_tensor *most = lengths->shape[0] ? fl_amax(lengths, FL_ALL_AXES) : fl_int(1);
    const double low = least ? fl_item(least) : 1, high = most ? fl_item(most) : 1;
    if (least && most && !fl_error() && (low < 1 || high > (double)m))
        fl_bad("fl_length_mask: lengths from %g to %g, want 1 to %" PRId64, low, high, m);
    else if (least && most && !fl_error()) {
        fl_tensor *place = fl_to(fl_arange(0, (double)m, 1, FL_I64), fl_backend_name(lengths));
        y = fl_lt(place, fl_reshape(lengths, FL_SHAPE(lengths->shape[0], 1, 1, 1)));
    }
    return fl_scope_return(&s, y);
}

fl_tensor *fl_alibi(int64_t heads, int64_t n, int64_t m, int64_t offset) {
    float slope[1024];
    int64_t even = 1;
    if (heads < 1 || heads > 1024) return fl_bad("fl_alibi: %" PRId64 " heads, takes 1 to 1024", heads);
    if (!fl__lengths_ok("fl_alibi", n, m, offset)) return NULL;
    while (2 * even <= heads) even *= 2;
    for (int64_t h = 0; h < heads; h++)
        slope[h] = (float)exp2(h < even ? -8.0 * (double)(h + 1) / (double)even
                                        : -4.0 * (double)(2 * (h - even) + 1) / (double)even);
    fl_scope s = fl_scope_begin();
    fl_tensor *distance = fl_neg(fl_cast(fl_abs(fl__distances(n, m, offset)), FL_F32));
    return fl_scope_return(&s, fl_mul(distance, fl_from_host(slope, FL_SHAPE(heads, 1, 1), FL_F32)));
}

fl_tensor *fl_relative_buckets(int64_t n, int64_t m, int64_t offset, int64_t buckets, int64_t most,
                               bool causal) {
    const int64_t all = causal ? buckets : buckets / 2, exact = all / 2;
    if (exact < 1 || most <= exact)
        return fl_bad("fl_relative_buckets: %" PRId64 " buckets up to %" PRId64, buckets, most);
    if (!fl__lengths_ok("fl_relative_buckets", n, m, offset)) return NULL;
    fl_scope s = fl_scope_begin();
    fl_tensor *d = fl__distances(n, m, offset);
    fl_tensor *ahead = fl_mul(fl_cast(fl_gt(d, fl_int(0)), FL_I64), fl_int(causal ? 0 : all));
    fl_tensor *distance = causal ? fl_neg(fl_minimum(d, fl_int(0))) : fl_abs(d);
    /* in f32 and in the order of T5's, whose roundings decide at the borders */
    fl_tensor *grown = fl_log(fl_div(fl_cast(distance, FL_F32), fl_num((double)exact)));
    grown = fl_div(grown, fl_num(log((double)most / (double)exact)));
    grown = fl_cast(fl_mul(grown, fl_num((double)(all - exact))), FL_I64);
    grown = fl_minimum(fl_add(grown, fl_int(exact)), fl_int(all - 1));
    return fl_scope_return(&s, fl_add(ahead, fl_where(fl_lt(distance, fl_int(exact)), distance, grown)));
}
#endif

FL_T *FL_W(relative_scores)(FL_T *q, FL_T *table, int64_t m, int64_t offset) {
    if (FL_ABSENT("relative_scores", q) || FL_ABSENT("relative_scores", table)) return NULL;
    const fl_tensor *t = FL_VALUE(q), *w = FL_VALUE(table);
    if (t->ndim < 2 || w->ndim != 2 || w->shape[0] % 2 == 0 || w->shape[1] != t->shape[t->ndim - 1])
        return fl_bad("fl_relative_scores: q %s, table %s; want [..., n, d], [2 c - 1, d]",
                      FL_SHAPE_TEXT(t), FL_SHAPE_TEXT(w));
    const int64_t n = t->shape[t->ndim - 2], most = w->shape[0] / 2;
    const int last = t->ndim - 1;
    if (!fl__lengths_ok("fl_relative_scores", n, m, offset)) return NULL;
    fl_scope s = fl_scope_begin();
    /* A row for each of n + m distances, the least first. Row i of the products begins n - 1 - i further on:
       read as rows that are shorter by one, all begin at the same column. */
    fl_tensor *d = fl_arange(-(double)(offset + n - 1), (double)(m + 1 - offset), 1, FL_I64);
    d = fl_add(fl_minimum(fl_maximum(d, fl_int(-most)), fl_int(most)), fl_int(most));
    d = d ? fl_to(d, fl_backend_name(w)) : NULL;
    FL_T *rows = d ? FL_W(index_select)(table, 0, d) : NULL;
    FL_T *each = rows ? FL_W(matmul)(q, FL_W(transpose)(rows, 0, 1)) : NULL;
    if (!each || n == 0) return FL_GIVE(&s, each ? FL_W(slice)(each, last, 0, m, 1) : NULL);
    fl_shape flat = fl_shape_of(FL_VALUE(each)), skewed = flat;
    flat.dim[--flat.ndim - 1] = n * (n + m);
    skewed.dim[last] = n + m - 1;
    each = FL_W(slice)(FL_W(reshape)(each, flat), -1, n - 1, n - 1 + n * (n + m - 1), 1);
    return FL_GIVE(&s, FL_W(slice)(FL_W(reshape)(each, skewed), -1, 0, m, 1));
}

#endif
/* MIT licence: see LICENSE. */
