/* fl/ops/position.h - positional encodings: rotary embedding, ALiBi, relative positions; length masks */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_POSITION_H
#define FL_OPS_POSITION_H

#ifdef __cplusplus
extern "C" {
#endif

/* Rotary position embedding (RoPE, arXiv 2104.09864): row i of x [..., t, d] has position p = scale (offset +
   i). Its pair j, (a, b), is rotated to (a cos w - b sin w, a sin w + b cos w), w = p base^(-2 j / dim).
   Floats; integers become f32. Errors: an odd dim or one above d, settings out of range. */
typedef enum fl_rotary_kind { FL_ROTARY_LINEAR, FL_ROTARY_LLAMA3, FL_ROTARY_YARN } fl_rotary_kind;
typedef struct fl_rotary_opts {
    fl_opts_guard guard_;
    double base;      /* 0: 10000 */
    int64_t offset;   /* position of row 0, for example the length of a KV cache */
    double scale;     /* factor of positions (1 / the scaling factor); 1 / 4 extends the context 4 times; 0:
                         1 */
    fl_rotary_kind kind; /* which pairs are scaled, by their number of rotations within the trained context:
                            LINEAR all; LLAMA3 (Llama 3.1) those with fewer than `low`, and partly those
                            between low and high; YARN (arXiv 2309.00071) the same with a ramp over pair
                            indices, and results are multiplied by 1 + 0.1 log(1 / scale) */
    double low, high; /* rotations; 0: 1 and 4, for YARN 1 and 32 */
    int64_t trained;  /* length of the trained context; for LLAMA3 and YARN */
    int64_t dim;      /* number of columns to rotate, the first of d; even; 0: d */
    bool interleaved; /* pairs are columns 2 j and 2 j + 1 (GPT-J, Meta's Llama); else j and j + dim / 2
                         (GPT-NeoX, Hugging Face) */
    char _end;
} fl_rotary_opts;
#define fl_rotary(...) FL__ROTARY(fl_, __VA_ARGS__, ._end = 0)
#define fv_rotary(...) FL__ROTARY(fv_, __VA_ARGS__, ._end = 0)
#define FL__ROTARY(p, x, ...) p##rotary_opt(x, FL_LITERAL(fl_rotary_opts, __VA_ARGS__))
FL_API fl_tensor *fl_rotary_opt(fl_tensor *x, fl_rotary_opts o);
FL_API fl_var *fv_rotary_opt(fl_var *x, fl_rotary_opts o);
/* The angle, in radians, by which pair j of o->dim columns rotates per position. */
FL_API double fl_rotary_frequency(const fl_rotary_opts *o, int64_t j);
/* The factor of all results: 1, or YARN's 1 + 0.1 log(1 / scale). */
FL_API double fl_rotary_attention_factor(const fl_rotary_opts *o);

/* Attention masks and biases, on the default backend, for m keys and n queries, of which query 0 has position
   offset. */
/* Padding mask, b8 [batch, 1, 1, m]: true for the first lengths[i] keys of sequence i; lengths is i64 [batch]
   with elements in [1, m]. */
FL_API fl_tensor *fl_length_mask(fl_tensor *lengths, int64_t m);
/* ALiBi (arXiv 2108.12409), f32 [heads, n, m]: -slope |offset + i - j| with slopes 2^(-8 h / heads), h = 1,
   2, ..., if heads is a power of two. Else the slopes of the next lower power of two, then every other one of
   twice as many heads. */
FL_API fl_tensor *fl_alibi(int64_t heads, int64_t n, int64_t m, int64_t offset);
/* T5's relative position buckets (arXiv 1910.10683), i64 [n, m]: the bucket of the distance j - (offset + i).
   Both directions have half of the buckets each; if causal, keys after the query are in bucket 0. Half of a
   direction's buckets hold one distance each, the others grow logarithmically up to max_distance; larger
   distances share the last one. */
FL_API fl_tensor *fl_relative_buckets(int64_t n, int64_t m, int64_t offset, int64_t buckets,
                                      int64_t max_distance, bool causal);
/* Relative position scores (arXiv 1803.02155), to be added to q k^T: q [..., n, d], table [2 c - 1, d] with
   one row per distance -> [..., n, m], q[i] . table[c - 1 + j - (offset + i)]. Distances are clamped to [1 -
   c, c - 1]. */
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
#define FL_EXPAND_FILE "position.inc"
#include "expand.h"
#endif /* FL_OPS_POSITION_IMPL */
#endif
/* MIT licence: see LICENSE. */
