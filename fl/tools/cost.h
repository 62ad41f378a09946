/* fl/tools/cost.h - cost model: multiply-adds, floating-point operations and bytes of calls */
#ifndef FL_TENSOR_H
#include "../../fl_tensor.h"
#endif
#ifndef FL_TOOLS_COST_H
#define FL_TOOLS_COST_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_cost {
    int64_t macs;  /* multiply-adds of matrix products, convolutions, attention, recurrent layers */
    int64_t flops; /* 2 macs; otherwise steps of the op's formula per output element; other arithmetic: 1 per
                      element of the first operand; data movement: 0 */
    int64_t bytes; /* of operands and results, each once; of broadcast ones the stored elements */
} fl_cost;
/* Nominal cost of a call, from the shapes of its operands: an algorithm may need fewer operations or move
   more bytes. For a composition, sum its parts instead. Registered ops give theirs in fl_op_info.macs. Zeros
   after an error. */
FL_API fl_cost fl_call_cost(const fl_call *c);

enum { FL_COST_NESTED = 64 }; /* maximum nesting depth of compositions */
/* Counts in `macs` the multiply-adds of the calls of this thread between begin and end. Of a composition its
   parts are counted; failed calls are not. Replaces the thread's call hooks (fl_backend.h) until end.
   Initialise it to zeros, do not move it meanwhile, and end nested ones first. */
typedef struct fl_cost_counter {
    int64_t macs;
    /* private */
    int64_t mark_[FL_COST_NESTED]; /* value of `macs` at the start of each running call */
    int nested_;
    void (*before_)(const fl_call *c, void *user);
    void (*after_)(const fl_call *c, void *user);
    void *user_;
} fl_cost_counter;
/* Starts counting. */
FL_API void fl_cost_begin(fl_cost_counter *counter);
/* Stops counting and restores the previous hooks. */
FL_API void fl_cost_end(fl_cost_counter *counter);

#ifdef __cplusplus
}
#endif
#endif /* FL_TOOLS_COST_H: stop here if you only want the API */

#if defined(FL_IMPL_ONLY_TOOLS_COST) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_TOOLS_COST_IMPL
#define FL_TOOLS_COST_IMPL
#include "../../fl_backend.h"

/* Number of stored elements: broadcast dims count once. */
static int64_t fl__stored_numbers(const fl_tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= t->stride[i] || !t->shape[i] ? t->shape[i] : 1;
    return n;
}

/* Each output element of a convolution (of dy in gradients) takes c / groups * kh * kw multiply-adds. */
static int64_t fl__table_macs(const fl_call *c) {
    const fl_tensor *a = c->in[0], *b = c->in[1], *y = c->out[0];
    switch (c->op) {
    case FL_OP_matmul: return fl_numel(y) * a->shape[a->ndim - 1];
    case FL_OP_conv2d: return fl_numel(y) * b->shape[1] * b->shape[2] * b->shape[3];
    case FL_OP_conv2d_grad_input: return fl_numel(a) * b->shape[1] * b->shape[2] * b->shape[3];
    case FL_OP_conv2d_grad_weight: return fl_numel(b) * y->shape[1] * y->shape[2] * y->shape[3];
    default: return 0;
    }
}

/* Steps of a formula, or of the needed outputs of a gradient formula, times elements. */
static int64_t fl__formula_flops(const fl_call *c, const fl_op_info *info) {
    if (info->arity) return fl_op_program(c->op, FL_PROGRAM_Y)->n_steps * fl_numel(c->out[0]);
    int64_t n = 0;
    for (int i = 0; i < c->n_out; i++)
        if (c->out[i]) n += fl_op_grad_steps(((const fl_grad_args *)c->args)->op, i) * fl_numel(c->out[i]);
    return n;
}

FL_API fl_cost fl_call_cost(const fl_call *c) {
    const fl_op_info *info = fl_given(c, "fl_call_cost", "the call") ? fl_op_get_info(c->op) : NULL;
    if (!info) return (fl_cost){0};
    const bool registered = c->op >= FL_TABLE_OPS, gradient = c->op == FL_OP_grad1 || c->op == FL_OP_grad2;
    fl_cost cost = {.macs = info->macs ? info->macs(c) : registered ? 0 : fl__table_macs(c)};
    cost.flops = 2 * cost.macs;
    if (info->arity || gradient) cost.flops = fl__formula_flops(c, info);
    else if (!cost.macs && (registered || (c->op >= FL_OP_sum && c->op <= FL_OP_cumprod)))
        cost.flops = fl_numel(c->in[0]);
    for (int i = 0; i < c->n_in + c->n_out; i++) {
        const fl_tensor *t = i < c->n_in ? c->in[i] : c->out[i - c->n_in];
        if (t && !t->weak) cost.bytes += fl__stored_numbers(t) * (int64_t)fl_dtype_size(t->dtype);
    }
    return cost;
}

static void fl__cost_before(const fl_call *c, void *user) {
    fl_cost_counter *n = user;
    (void)c;
    if (n->nested_ < FL_COST_NESTED) n->mark_[n->nested_] = n->macs;
    n->nested_++;
}

/* A call whose composition was counted is not counted itself. */
static void fl__cost_after(const fl_call *c, void *user) {
    fl_cost_counter *n = user;
    if (--n->nested_ < FL_COST_NESTED && n->mark_[n->nested_] == n->macs && !fl_error())
        n->macs += fl_call_cost(c).macs;
}

FL_API void fl_cost_begin(fl_cost_counter *counter) {
    if (!fl_given(counter, "fl_cost_begin", "the counter")) return;
    const fl_call_hooks was = fl_call_hook(fl__cost_before, fl__cost_after, counter);
    counter->before_ = was.before, counter->after_ = was.after, counter->user_ = was.user;
}

FL_API void fl_cost_end(fl_cost_counter *counter) {
    if (fl_given(counter, "fl_cost_end", "the counter"))
        fl_call_hook(counter->before_, counter->after_, counter->user_);
}

#endif
#endif
/* MIT licence: see LICENSE. */
