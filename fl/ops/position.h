/* fl/ops/position.h - what tells attention where its queries and keys stand: rotary positions, and
   masks by length and by distance */
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
    fl_opts_guard guard_;
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
#define FL__ROTARY(p, x, ...) p##rotary_opt(x, FL_LITERAL(fl_rotary_opts, __VA_ARGS__))
FL_API fl_tensor *fl_rotary_opt(fl_tensor *x, fl_rotary_opts o);
FL_API fl_var *fv_rotary_opt(fl_var *x, fl_rotary_opts o);
/* The angle of pair j of o->dim columns, from place to place;  what all results are multiplied by. */
FL_API double fl_rotary_frequency(const fl_rotary_opts *o, int64_t j);
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
#include "../../fl_backend.h"
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
#define FL_TEXT "position.inc"
#include "expand.h"
#endif /* FL_OPS_POSITION_IMPL */
#endif
/* MIT licence: see LICENSE. */
