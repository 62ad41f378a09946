/* fl/ops/attention.h - scaled dot-product attention

   y = dropout(softmax(cap(scale q k^T) + mask)) v,  cap(s) = softcap tanh(s / softcap) or s

   Records (fl_attention_args). All operands have the same batch dims. q, k, v, y and their gradients have
   one dtype; lse and a float mask have the dtype that accumulates it (f32 for f16 and bf16).
     attention       q [..., n, d], k [..., m, d], v [..., m, e], mask [..., n, m] (b8: true = attend; float:
                     added to the scores; a number: no mask) -> y [..., n, e], lse [..., n, 1] =
                     log(sum(exp(scores))), inf for a query that attends to no key
     attention_grad  the same inputs, y, lse, dy -> dq, dk, dv
   The last axis of each output has stride 1. Query heads that share a key/value head (grouped-query
   attention) are an extra axis, along which k and v have stride 0. */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_OPS_ATTENTION_H
#define FL_OPS_ATTENTION_H
#include "../records/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_attention_opts {
    fl_opts_guard guard_;
    fl_tensor *mask; /* broadcasts to [..., n, m]: b8 (true = attend) or a float added to the scores */
    bool causal;     /* query i attends to keys 0 to offset + i */
    int64_t offset;  /* position of query 0 among the keys, for example the length of a KV cache */
    int64_t window;  /* query i attends to keys j with |offset + i - j| < window (Mistral's sliding window);
                        0: no limit */
    double softcap;  /* scaled scores become softcap tanh(score / softcap) (Gemma 2); 0: off */
    double scale;    /* factor of q k^T; 0: 1 / sqrt(d) */
    double dropout;  /* probability in [0, 1] of zeroing an attention weight; the others are multiplied
                        by 1 / (1 - dropout) */
    fl_rng *rng;     /* generator for dropout; NULL: the global one */
    char _end;
} fl_attention_opts;
/* The same fields, with a variable as the mask, which may require a gradient. */
typedef struct fv_attention_opts {
    fl_opts_guard guard_;
    fl_var *mask;
    bool causal;
    int64_t offset, window;
    double softcap, scale, dropout;
    fl_rng *rng;
    char _end;
} fv_attention_opts;
/* PyTorch's scaled_dot_product_attention: q [..., n, d], k [..., m, d], v [..., m, e] -> [..., n, e]; batch
   dims broadcast, dtypes promote (integers to f32). The output is 0 for a query that attends to no key. If k
   and v have fewer heads (axis -3) than q, but more than one, each key/value head is shared by q_heads /
   kv_heads consecutive query heads (grouped-query attention, enable_gqa). The backward pass saves one number
   per query, not the scores. The cpu kernel skips keys that causal or window hide: NaN and inf in their
   values need not reach the output. Errors: shapes that do not match, dropout outside [0, 1], a negative
   offset, window or softcap. */
#define fl_attention(...) FL__ATTENTION(fl_, __VA_ARGS__, ._end = 0)
#define fv_attention(...) FL__ATTENTION(fv_, __VA_ARGS__, ._end = 0)
#define FL__ATTENTION(p, q, k, v, ...) p##attention_opt(q, k, v, FL_LITERAL(p##attention_opts, __VA_ARGS__))
FL_API fl_tensor *fl_attention_opt(fl_tensor *q, fl_tensor *k, fl_tensor *v, fl_attention_opts o);
FL_API fl_var *fv_attention_opt(fl_var *q, fl_var *k, fl_var *v, fv_attention_opts o);
/* Attention of q = qkv[0], k = qkv[1], v = qkv[2] for qkv [3, ..., n, d] -> [..., n, d]. The gradient is one
   tensor of qkv's shape. */
#define fl_attention_packed(...) FL__ATTENTION_PACKED(fl_, __VA_ARGS__, ._end = 0)
#define fv_attention_packed(...) FL__ATTENTION_PACKED(fv_, __VA_ARGS__, ._end = 0)
#define FL__ATTENTION_PACKED(p, qkv, ...) \
    p##attention_packed_opt(qkv, FL_LITERAL(p##attention_opts, __VA_ARGS__))
FL_API fl_tensor *fl_attention_packed_opt(fl_tensor *qkv, fl_attention_opts o);
FL_API fl_var *fv_attention_packed_opt(fl_var *qkv, fv_attention_opts o);

FL_PRIVATE void fl__register_attention(void);

#ifdef __cplusplus
}
#endif
#endif /* FL_OPS_ATTENTION_H */

#if defined(FL_IMPL_ONLY_OPS_ATTENTION) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_OPS_ATTENTION_IMPL
#define FL_OPS_ATTENTION_IMPL
#include "../../fl_autograd.h"
#include "../../fl_backend.h"
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
#define FL_EXPAND_FILE "attention.inc"
#include "expand.h"

FL_DATA_DEFINED fl_op fl_op_attention, fl_op_attention_grad;

/* Multiply-adds of q k^T and weights v; the gradient's are q k^T, dy v^T, and those of dq, dk and dv. */
static int64_t fl__attention_macs(const fl_call *c) {
    return (fl_numel(c->in[0]) + fl_numel(c->out[0])) * c->in[1]->shape[c->in[1]->ndim - 2];
}
static int64_t fl__attention_grad_macs(const fl_call *c) {
    const fl_tensor *q = c->in[0], *k = c->in[1], *dy = c->in[c->n_in - 1];
    return (3 * fl_numel(q) + 2 * fl_numel(dy)) * k->shape[k->ndim - 2];
}

FL_PRIVATE void fl__register_attention(void) {
    FL__REGISTER(attention, .args_size = sizeof(fl_attention_args),
                 .uses = "matmul mul add where amax sub exp sum div log tanh softmax abs eq isneginf "
                             "iota le lt ge bitwise_not bitwise_and",
                 .compose = fl__compose_attention, .gradient = fv__attention_back,
                 .rng_end = offsetof(fl_attention_args, rng) + sizeof(fl_rng), .macs = fl__attention_macs);
    FL__REGISTER(attention_grad, .args_size = sizeof(fl_attention_args),
                 .uses = "matmul mul add where amax sub exp sum div tanh softmax abs eq isneginf iota le "
                             "lt ge bitwise_not bitwise_and",
                 .compose = fl__compose_attention_grad,
                 .rng_end = offsetof(fl_attention_args, rng) + sizeof(fl_rng),
                 .macs = fl__attention_grad_macs);
}

#endif /* FL_OPS_ATTENTION_IMPL */
#endif
/* MIT licence: see LICENSE. */
