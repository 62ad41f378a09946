/* kernels/cuda/attention.h - attention cases cuDNN does not support: f32, windows, softcaps, old versions

   Runs the two matrix products as ops, with the scores of all queries in memory between them, and one kernel
   for the rest. Products are in the operands' dtype, scores and sums in the wide one. */
#ifndef FL_CUDA_ATTENTION_H
#define FL_CUDA_ATTENTION_H
#include "layers.h"
/* Adds the slots of this file to the table. */
FL_PRIVATE void fl__cuda_attention_slots(fl_backend *cuda);
#endif

#if defined(FL_IMPL_ONLY_CUDA_ATTENTION) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CUDA_ATTENTION_IMPL
#define FL_CUDA_ATTENTION_IMPL
#include "../../fl/records/attention.h"
#include "../../fl/tensor/view.h"

/* y = a b, or a b^T, as an op call. y NULL: a new tensor of the wide dtype. */
static fl_tensor *fl__cuda_product(fl_tensor *y, fl_tensor *a, fl_tensor *b, bool transposed) {
    if (transposed) b = fl_transpose(b, -1, -2);
    if (!a || !b) return NULL;
    fl_shape s = fl_shape_of(a);
    s.dim[s.ndim - 1] = b->shape[b->ndim - 1];
    if (!y) y = fl_out_on(a->backend, s, fl_dtype_wide(a->dtype));
    return fl_call_into(FL_OP_matmul, y, a, b, NULL);
}

/* The output of a kernel with wide input x: x itself, or a new tensor of a narrower dtype. */
static fl_tensor *fl__cuda_narrower(fl_tensor *x, fl_dtype d) {
    if (!x || x->dtype == d) return x;
    fl_tensor *y = fl_out_on(x->backend, fl_shape_of(x), d);
    return y && fl_out_allocate(y) ? y : NULL;
}

static flk_attention fl__cuda_attends(const fl_call *c, fl_tensor *scores, fl_tensor *weights) {
    const fl_attention_args *args = c->args;
    fl_tensor *mask = c->in[3];
    const int nd = scores->ndim;
    flk_attention a = {.n = scores->shape[nd - 2],
                       .m = scores->shape[nd - 1],
                       .offset = args->offset,
                       .window = args->window,
                       .scores = fl_data(scores),
                       .scale = args->scale,
                       .softcap = args->softcap,
                       .drop = args->p,
                       .key = args->rng.key,
                       .counter = args->rng.counter,
                       .word = flk_rng_word(),
                       .causal = args->causal};
    fl_tensor first = *mask; /* per batch */
    if (!mask->weak) {
        a.mask_row = mask->stride[nd - 2];
        a.mask_column = mask->stride[nd - 1];
    }
    first.ndim = nd - 2;
    for (int i = 0; i < nd - 2; i++) first.shape[i] = scores->shape[i];
    fl__cuda_pass(&a.batch, c->op, 1, (fl_tensor *[]){&first}, 0, -1, true);
    fl__cuda_operand(&a.weights, weights);
    a.rows = a.batch.n * a.n;
    return a;
}

/* q, k, v, mask -> y, lse */
FL_CUDA_SLOT(fl__cuda_attention) {
    fl_tensor *q = c->in[0], *y = c->out[0];
    if (!fl__cuda_outputs(c)) return false;
    fl_scope s = fl_scope_begin();
    fl_tensor *scores = fl__cuda_product(NULL, q, c->in[1], true);
    fl_tensor *weights = fl__cuda_narrower(scores, q->dtype);
    bool ok = weights != NULL;
    if (ok) {
        flk_attention a = fl__cuda_attends(c, scores, weights);
        a.lse = fl_data(c->out[1]);
        ok = fl__cuda_started(c, flk_attention_weights(&a, (int)scores->dtype)) &&
             fl__cuda_product(y, weights, c->in[2], false);
    }
    fl_scope_end(&s);
    return ok;
}

/* q, k, v, mask, y, lse, dy -> dq, dk, dv */
FL_CUDA_SLOT(fl__cuda_attention_grad) {
    fl_tensor *q = c->in[0], *dy = c->in[6];
    if (!fl__cuda_outputs(c)) return false;
    fl_scope s = fl_scope_begin();
    fl_tensor *scores = fl__cuda_product(NULL, q, c->in[1], true);
    fl_tensor *dweights = fl__cuda_product(NULL, dy, c->in[2], true);
    fl_tensor *weights = fl__cuda_narrower(scores, q->dtype);
    fl_tensor *dscores = fl__cuda_narrower(dweights, q->dtype);
    bool ok = weights && dscores;
    if (ok) {
        flk_attention a = fl__cuda_attends(c, scores, weights);
        a.lse = fl_data(c->in[5]);
        a.dweights = fl_data(dweights);
        fl__cuda_operand(&a.dscores, dscores);
        ok = fl__cuda_started(c, flk_attention_dscores(&a, (int)scores->dtype)) &&
             fl__cuda_product(c->out[0], dscores, c->in[1], false) &&
             fl__cuda_product(c->out[1], fl_transpose(dscores, -1, -2), q, false) &&
             fl__cuda_product(c->out[2], fl_transpose(weights, -1, -2), dy, false);
    }
    fl_scope_end(&s);
    return ok;
}

FL_PRIVATE void fl__cuda_attention_slots(fl_backend *cuda) {
    fl_backend_set(cuda, fl_op_attention, fl__cuda_attention, FL_SLOT_NARROW);
    fl_backend_set(cuda, fl_op_attention_grad, fl__cuda_attention_grad, FL_SLOT_NARROW);
}

#endif
#endif
/* MIT licence: see LICENSE. */
