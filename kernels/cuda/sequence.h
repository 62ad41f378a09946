/* kernels/cuda/sequence.h - slots of registered ops on family cuda: attention, CTC, recurrent layers, fft

   Attention without cuDNN, with masks or with dropout: its products are records of their own, with the scores
   of all queries between them in memory, and one kernel does the rest. The products are of the operands'
   dtype, the scores and sums between them wide. A recurrent layer is a product of all its rows, then of each
   step a product and a kernel, as on the cpu. */
#ifndef FL_CUDA_SEQUENCE_H
#define FL_CUDA_SEQUENCE_H
#include "layers.h"
/* Puts the slots of this file into the table. */
FL_PRIVATE void fl__cuda_sequence_slots(fl_backend *cuda);
#endif

#if defined(FL_IMPL_ONLY_CUDA_SEQUENCE) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CUDA_SEQUENCE_IMPL
#define FL_CUDA_SEQUENCE_IMPL
#include "../../fl/ops/attention.h"
#include "../../fl/ops/ctc.h"
#include "../../fl/ops/fft.h"
#include "../../fl/ops/recurrent.h"
#include "../../fl/ops/view.h"
#include <string.h>

/* ---- attention ---- */

/* y = a b, or a b^T, as a record; y NULL: a new one of the wide dtype */
static fl_tensor *fl__cuda_product(fl_tensor *y, fl_tensor *a, fl_tensor *b, bool transposed) {
    if (transposed) b = fl_transpose(b, -1, -2);
    if (!a || !b) return NULL;
    fl_shape s = fl_shape_of(a);
    s.dim[s.ndim - 1] = b->shape[b->ndim - 1];
    if (!y) y = fl_out_on(a->family, s, fl_dtype_wide(a->dtype));
    return fl_call_into(FL_OP_matmul, y, a, b, NULL);
}

/* Where the kernel writes what has been computed from x, wide: over it, or of a narrower dtype. */
static fl_tensor *fl__cuda_narrower(fl_tensor *x, fl_dtype d) {
    if (!x || x->dtype == d) return x;
    fl_tensor *y = fl_out_on(x->family, fl_shape_of(x), d);
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
    fl_tensor first = *mask; /* of each batch */
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
FL__CUDA_SLOT(fl__cuda_attention) {
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
FL__CUDA_SLOT(fl__cuda_attention_grad) {
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

/* ---- CTC ---- */

static void fl__cuda_strided(flk_operand *o, const fl_tensor *t) {
    fl__cuda_operand(o, t);
    memcpy(o->stride, t->stride, sizeof t->stride);
}

/* logp, target, steps, lengths -> total;  the same, total, dy -> dlogp. Faults are gather's, as in the
   composition. */
FL__CUDA_SLOT(fl__cuda_ctc) {
    const fl_tensor *x = c->in[0], *target = c->in[1];
    const bool grad = c->op == fl_op_ctc_grad;
    flk_ctc a = {.t = x->shape[0],
                 .n = x->shape[1],
                 .classes = x->shape[2],
                 .longest = target->shape[1],
                 .places = 2 * target->shape[1] + 1,
                 .blank = ((const fl_ctc_args *)c->args)->blank,
                 .fault_op = FL_OP_gather};
    if (!fl_out_make(c->out[0])) return false;
    fl__cuda_strided(&a.x, x);
    fl__cuda_strided(&a.target, target);
    fl__cuda_strided(&a.steps, c->in[2]);
    fl__cuda_strided(&a.lengths, c->in[3]);
    fl__cuda_strided(&a.total, grad ? c->in[4] : c->out[0]);
    if (grad) fl__cuda_strided(&a.dy, c->in[5]);
    if (grad) fl__cuda_strided(&a.dx, c->out[0]);
    const fl_dtype wide = fl_dtype_wide(x->dtype);
    fl_buffer *work = fl__cuda_scratch(c, (size_t)flk_ctc_work(&a) * fl_dtype_size(wide));
    if (!work) return false;
    a.work = work->ptr;
    const bool ok = fl__cuda_started(c, flk_ctc_run(&a, (int)wide));
    fl_buffer_drop(work);
    return ok;
}

/* ---- recurrent layers ---- */

/* A record: its tensors that kernels and products share. Those of [rows, ...] in x's order of rows. */
typedef struct fl__cuda_rnn_run {
    const fl_rnn_args *a;
    const fl_call *call;
    flk_rnn k;
    int64_t in, rows, columns; /* columns: gates hidden */
    int dtype;
} fl__cuda_rnn_run;

/* Numbers of the flat t from `at` on as a matrix, or as one for each of `batch` > 0. */
static fl_tensor fl__cuda_cut(const fl_tensor *t, int64_t at, int64_t batch, int64_t rows, int64_t columns) {
    fl_tensor y = *t;
    y.offset += at;
    y.ndim = batch ? 3 : 2;
    int64_t *shape = y.shape, *stride = y.stride;
    if (batch) *shape++ = batch, *stride++ = rows * columns;
    shape[0] = rows, stride[0] = columns;
    shape[1] = columns, stride[1] = 1;
    return y;
}

/* The numbers of all rows for one direction as matrices [ways, rows, width], of t [rows, ways, of]. */
static fl_tensor fl__cuda_ways(const fl__cuda_rnn_run *r, const fl_tensor *t, int64_t at, int64_t width,
                               int64_t of) {
    fl_tensor y = fl__cuda_cut(t, at, r->a->ways, r->rows, width);
    y.stride[0] = of;
    y.stride[1] = r->a->ways * of;
    return y;
}

static fl_tensor fl__cuda_turned(fl_tensor t) {
    const int d = t.ndim - 2;
    const int64_t rows = t.shape[d], step = t.stride[d];
    t.shape[d] = t.shape[d + 1], t.stride[d] = t.stride[d + 1];
    t.shape[d + 1] = rows, t.stride[d + 1] = step;
    return t;
}

/* Part `part` of the weights or their gradient, of all directions. */
static fl_tensor fl__cuda_weights(const fl__cuda_rnn_run *r, const fl_tensor *w, int part) {
    fl_shape s;
    const int64_t at = fl_rnn_part(r->a, r->in, part, &s);
    return fl__cuda_cut(w, at, r->a->ways, s.dim[0], s.ndim > 1 ? s.dim[1] : 1);
}

static fl_tensor *fl__cuda_room(const fl__cuda_rnn_run *r, fl_shape s) {
    fl_tensor *t = fl_out_on(r->call->in[0]->family, s, r->call->in[0]->dtype);
    return t && fl_out_allocate(t) ? t : NULL;
}

static bool fl__cuda_times(fl_tensor y, fl_tensor a, fl_tensor b) {
    return fl_call_into(FL_OP_matmul, &y, &a, &b, NULL) != NULL;
}

/* y becomes x, or 0 where that is a number. */
static bool fl__cuda_becomes(fl_tensor y, const fl_tensor *x) {
    static const fl_fill_args zero = {0, 0};
    fl_tensor from = y;
    if (x->weak) return fl_call_into(FL_OP_fill, &y, NULL, NULL, &zero) != NULL;
    from.buffer = x->buffer;
    from.offset = x->offset;
    return fl_call_into(FL_OP_copy, &y, &from, NULL, NULL) != NULL;
}

static bool fl__cuda_rnn_kernel(fl__cuda_rnn_run *r, int what) {
    return fl__cuda_started(r->call, flk_rnn_step(&r->k, what, r->dtype));
}

static fl__cuda_rnn_run fl__cuda_rnn_begin(const fl_call *c) {
    const fl_tensor *x = c->in[0], *w = c->in[3];
    const fl_rnn_args *a = c->args;
    const int64_t steps = x->shape[a->batch_first], n = x->shape[!a->batch_first];
    fl__cuda_rnn_run r = {.a = a,
                          .call = c,
                          .in = x->shape[2],
                          .rows = steps * n,
                          .columns = a->gates * a->hidden,
                          .dtype = (int)x->dtype};
    r.k = (flk_rnn){.steps = steps,
                    .n = n,
                    .hidden = a->hidden,
                    .out = a->out,
                    .more = fl_rnn_reserve(a, 1) / a->ways - r.columns,
                    .mode = (int)a->mode,
                    .gates = a->gates,
                    .ways = a->ways,
                    .batch_first = a->batch_first};
    r.k.lengths = c->in[4]->weak ? NULL : fl_data(c->in[4]);
    if (a->biased) {
        const fl_tensor b[] = {fl__cuda_weights(&r, w, 2), fl__cuda_weights(&r, w, 3)};
        r.k.bias_x = fl_data(&b[0]);
        r.k.bias_h = fl_data(&b[1]);
    }
    return r;
}

/* x, h0, c0, w, lengths -> flat y, h, c, [reserve] */
FL__CUDA_SLOT(fl__cuda_rnn) {
    if (!fl__cuda_outputs(c)) return false;
    fl__cuda_rnn_run r = fl__cuda_rnn_begin(c);
    const int64_t ways = r.a->ways, n = r.k.n, hidden = r.a->hidden, out = r.a->out, all = ways * r.columns;
    const bool projected = out != hidden, lstm = r.a->mode == FL_LSTM;
    fl_tensor *flat = c->out[0], *kept = c->n_out > 1 ? c->out[1] : NULL;
    fl_scope s = fl_scope_begin();
    fl_tensor *gates = kept ? kept : fl__cuda_room(&r, FL_SHAPE(r.rows, all));
    fl_tensor *sums = fl__cuda_room(&r, FL_SHAPE(ways, n, r.columns));
    fl_tensor *work = fl__cuda_room(&r, FL_SHAPE(ways, n, projected ? hidden : 0));
    fl_tensor *state = fl__cuda_room(&r, FL_SHAPE(ways, n, projected ? out : 0));
    bool ok = gates && sums && work && state;
    if (ok) {
        const int64_t h_at = r.rows * ways * out;
        const fl_tensor h = fl__cuda_cut(flat, h_at, ways, n, out);
        const fl_tensor cell = fl__cuda_cut(flat, h_at + ways * n * out, ways, n, lstm ? hidden : 0);
        const fl_tensor extra = fl__cuda_cut(gates, r.rows * all, 0, r.rows, ways * r.k.more);
        fl_tensor w = *c->in[3];
        r.k.gate = fl_data(gates);
        r.k.extra = kept ? fl_data(&extra) : NULL;
        r.k.y = fl_data(flat);
        r.k.h = fl_data(&h);
        r.k.c = fl_data(&cell);
        r.k.work = projected ? fl_data(work) : NULL;
        ok =
            fl__cuda_becomes(h, c->in[1]) && (!lstm || fl__cuda_becomes(cell, c->in[2])) &&
            fl__cuda_times(fl__cuda_cut(gates, 0, 0, r.rows, all), fl__cuda_cut(c->in[0], 0, 0, r.rows, r.in),
                           fl__cuda_turned(fl__cuda_cut(&w, 0, 0, all, r.in)));
        for (r.k.step = 0; ok && r.k.step < r.k.steps; r.k.step++) {
            r.k.sums = fl_data(sums);
            ok = fl__cuda_times(*sums, h, fl__cuda_turned(fl__cuda_weights(&r, &w, 1))) &&
                 fl__cuda_rnn_kernel(&r, FLK_RNN_FORWARD);
            r.k.sums = fl_data(state);
            if (projected)
                ok = ok && fl__cuda_times(*state, *work, fl__cuda_turned(fl__cuda_weights(&r, &w, 4))) &&
                     fl__cuda_rnn_kernel(&r, FLK_RNN_PUT);
        }
    }
    fl_scope_end(&s);
    return ok;
}

/* What the steps of the gradient make. Without a projection work, dhidden and projected are empty. */
typedef struct fl__cuda_rnn_rooms {
    fl_tensor *dx, *dh, *old, *projected, *keep, *back, *moment, *work, *dhidden, *cell;
} fl__cuda_rnn_rooms;

static bool fl__cuda_rnn_rooms_of(fl__cuda_rnn_run *r, fl__cuda_rnn_rooms *m) {
    const int64_t ways = r->a->ways, n = r->k.n, out = r->a->out, all = ways * r->columns;
    const int64_t more = out != r->a->hidden, cells = r->a->mode == FL_LSTM ? r->a->hidden : 0;
    const struct {
        fl_tensor **t;
        fl_shape shape;
    } rooms[] = {{&m->dx, FL_SHAPE(r->rows, all)},
                 {&m->dh, FL_SHAPE(r->a->mode == FL_GRU ? r->rows : 0, all)},
                 {&m->old, FL_SHAPE(r->rows, ways, out)},
                 {&m->projected, FL_SHAPE(more * r->rows, ways, out)},
                 {&m->keep, FL_SHAPE(ways, n, out)},
                 {&m->back, FL_SHAPE(ways, n, out)},
                 {&m->moment, FL_SHAPE(ways, n, r->columns)},
                 {&m->work, FL_SHAPE(ways, n, more * out)},
                 {&m->dhidden, FL_SHAPE(ways, n, more * r->a->hidden)},
                 {&m->cell, FL_SHAPE(ways, n, cells)}};
    for (int i = 0; i < (int)(sizeof rooms / sizeof *rooms); i++)
        if (!(*rooms[i].t = fl__cuda_room(r, rooms[i].shape))) return false;
    r->k.dx = fl_data(m->dx);
    r->k.dh = fl_data(m->dh);
    if (r->a->mode != FL_GRU) m->dh = m->dx;
    r->k.old = fl_data(m->old);
    r->k.projected = fl_data(m->projected);
    r->k.h = fl_data(m->keep);
    r->k.moment = fl_data(m->moment);
    r->k.c = fl_data(m->cell);
    return true;
}

/* All steps, the last first. */
static bool fl__cuda_rnn_steps_back(fl__cuda_rnn_run *r, const fl__cuda_rnn_rooms *m, const fl_tensor *w) {
    const bool projected = r->a->out != r->a->hidden;
    bool ok = true;
    r->k.sums = NULL;
    for (r->k.step = r->k.steps - 1; ok && r->k.step >= 0; r->k.step--) {
        if (projected) {
            r->k.work = fl_data(m->work);
            ok = fl__cuda_rnn_kernel(r, FLK_RNN_MEET) &&
                 fl__cuda_times(*m->dhidden, *m->work, fl__cuda_weights(r, w, 4));
            r->k.work = fl_data(m->dhidden);
        }
        ok = ok && fl__cuda_rnn_kernel(r, FLK_RNN_BACK) &&
             fl__cuda_times(*m->back, *m->moment, fl__cuda_weights(r, w, 1));
        r->k.sums = fl_data(m->back);
    }
    return ok;
}

/* Of each part of the weights one product, or a sum, over all rows. */
static bool fl__cuda_rnn_weights_back(const fl__cuda_rnn_run *r, const fl__cuda_rnn_rooms *m, fl_tensor *dw) {
    const int64_t out = r->a->out, hidden = r->a->hidden, all = r->a->ways * r->columns;
    const fl_reduce_args rows = {.axes = 1};
    fl_tensor dx = *m->dx, x = fl__cuda_cut(r->call->in[0], 0, 0, r->rows, r->in);
    bool ok = fl__cuda_times(fl__cuda_cut(dw, 0, 0, all, r->in), fl__cuda_turned(dx), x) &&
              fl__cuda_times(fl__cuda_weights(r, dw, 1),
                             fl__cuda_turned(fl__cuda_ways(r, m->dh, 0, r->columns, r->columns)),
                             fl__cuda_ways(r, m->old, 0, out, out));
    if (ok && out != hidden)
        ok = fl__cuda_times(fl__cuda_weights(r, dw, 4),
                            fl__cuda_turned(fl__cuda_ways(r, m->projected, 0, out, out)),
                            fl__cuda_ways(r, r->call->in[6], r->rows * all + hidden, hidden, r->k.more));
    for (int part = 2; ok && r->a->biased && part < 4; part++) {
        fl_tensor b = fl__cuda_weights(r, dw, part), *of = part == 2 ? m->dx : m->dh;
        b.ndim = 1;
        b.shape[0] = all;
        b.stride[0] = 1;
        ok = fl_call_into(FL_OP_sum, &b, of, NULL, &rows) != NULL;
    }
    return ok;
}

/* x, h0, c0, w, lengths, flat y, reserve, dy -> [dx], [dh0], [dc0], [dw]. The reserve is that of the slot
   above: where another made it, the composition does without. */
FL__CUDA_SLOT(fl__cuda_rnn_grad) {
    if (self->op[fl_op_rnn] != fl__cuda_rnn) return fl_call_compose(c);
    if (!fl__cuda_outputs(c)) return false;
    fl__cuda_rnn_run r = fl__cuda_rnn_begin(c);
    fl__cuda_rnn_rooms m;
    const int64_t ways = r.a->ways, n = r.k.n, hidden = r.a->hidden, out = r.a->out, all = ways * r.columns;
    const bool lstm = r.a->mode == FL_LSTM;
    fl_tensor *dflat = c->in[7], *w = c->in[3];
    fl_scope s = fl_scope_begin();
    bool ok = fl__cuda_rnn_rooms_of(&r, &m);
    if (ok) {
        const int64_t h_at = r.rows * ways * out;
        const fl_tensor dh = fl__cuda_cut(dflat, h_at, ways, n, out);
        const fl_tensor dc = fl__cuda_cut(dflat, h_at + ways * n * out, ways, n, lstm ? hidden : 0);
        const fl_tensor extra = fl__cuda_cut(c->in[6], r.rows * all, 0, r.rows, ways * r.k.more);
        r.k.gate = fl_data(c->in[6]);
        r.k.extra = fl_data(&extra);
        r.k.y = fl_data(c->in[5]);
        r.k.dy = fl_data(dflat);
        r.k.h0 = c->in[1]->weak ? NULL : fl_data(c->in[1]);
        r.k.c0 = c->in[2]->weak ? NULL : fl_data(c->in[2]);
        ok = fl__cuda_becomes(*m.keep, &dh) && (!lstm || fl__cuda_becomes(*m.cell, &dc)) &&
             fl__cuda_rnn_steps_back(&r, &m, w);
    }
    if (ok && c->out[0])
        ok = fl__cuda_times(fl__cuda_cut(c->out[0], 0, 0, r.rows, r.in), *m.dx,
                            fl__cuda_cut(w, 0, 0, all, r.in));
    if (ok && c->out[1]) ok = fl_call_into(FL_OP_add, c->out[1], m.keep, m.back, NULL) != NULL;
    if (ok && c->out[2]) ok = fl__cuda_becomes(fl__cuda_cut(c->out[2], 0, ways, n, hidden), m.cell);
    if (ok && c->out[3]) ok = fl__cuda_rnn_weights_back(&r, &m, c->out[3]);
    fl_scope_end(&s);
    return ok;
}

/* ---- Fourier transforms ---- */

FL__CUDA_SLOT(fl__cuda_fft) {
    const fl_fft_args *a = c->args;
    const fl_tensor *x = c->in[0];
    if (!fl_out_make(c->out[0])) return false;
    if (!fl_numel(x)) return true;
    flk_fft f = {.n = x->shape[a->axis], .inner = 1, .inverse = a->inverse};
    for (int d = a->axis + 1; d < x->ndim - 1; d++) f.inner *= x->shape[d];
    f.lines = fl_numel(x) / (2 * f.n);
    if (f.n > (int64_t)1 << 31) return fl_fail("fl_fft: %lld elements", (long long)f.n);
    fl_buffer *work = fl__cuda_scratch(c, flk_fft_plan(&f));
    if (!work) return false;
    f.x = fl_data(x);
    f.y = fl_data(c->out[0]);
    f.work = work->ptr;
    const bool ok = fl__cuda_started(c, flk_fft_run(&f, (int)x->dtype));
    fl_buffer_drop(work);
    return ok;
}

FL_PRIVATE void fl__cuda_sequence_slots(fl_backend *cuda) {
    fl_backend_set(cuda, fl_op_fft, fl__cuda_fft, FL_SLOT_CONTIGUOUS);
    fl_backend_set(cuda, fl_op_rnn, fl__cuda_rnn, FL_SLOT_CONTIGUOUS);
    fl_backend_set(cuda, fl_op_rnn_grad, fl__cuda_rnn_grad, FL_SLOT_CONTIGUOUS);
    fl_backend_set(cuda, fl_op_ctc, fl__cuda_ctc, FL_SLOT_NARROW);
    fl_backend_set(cuda, fl_op_ctc_grad, fl__cuda_ctc, FL_SLOT_NARROW);
    fl_backend_set(cuda, fl_op_attention, fl__cuda_attention, FL_SLOT_NARROW);
    fl_backend_set(cuda, fl_op_attention_grad, fl__cuda_attention_grad, FL_SLOT_NARROW);
}

#endif
#endif
/* MIT licence: see LICENSE. */
