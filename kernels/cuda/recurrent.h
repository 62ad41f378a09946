/* kernels/cuda/recurrent.h - slots of recurrent layers and their gradient on backend cuda

   One matrix product for the inputs of all rows, then per step one product and one kernel, as on the cpu. */
#ifndef FL_CUDA_RECURRENT_H
#define FL_CUDA_RECURRENT_H
#include "layers.h"
/* Adds the slots of this file to the table. */
FL_PRIVATE void fl__cuda_recurrent_slots(fl_backend *cuda);
#endif

#if defined(FL_IMPL_ONLY_CUDA_RECURRENT) || (defined(FL_IMPLEMENTATION) && !defined(FL_IMPL_ONLY))
#ifndef FL_CUDA_RECURRENT_IMPL
#define FL_CUDA_RECURRENT_IMPL
#include "../../fl/records/recurrent.h"

/* A call: the tensors shared by kernels and products; [rows, ...] in x's order of rows. */
typedef struct fl__cuda_rnn_run {
    const fl_rnn_args *a;
    const fl_call *call;
    flk_rnn k;
    int64_t in, rows, columns; /* columns: number of gates times hidden */
    int dtype;
} fl__cuda_rnn_run;

/* A view of the flat t from `at` on as a matrix, or as `batch` > 0 matrices. */
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

/* The values of all rows per direction as matrices [ways, rows, width], from t [rows, ways, of]. */
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

/* Part `part` of the weights or their gradient, for all directions. */
static fl_tensor fl__cuda_weights(const fl__cuda_rnn_run *r, const fl_tensor *w, int part) {
    fl_shape s;
    const int64_t at = fl_rnn_part(r->a, r->in, part, &s);
    return fl__cuda_cut(w, at, r->a->ways, s.dim[0], s.ndim > 1 ? s.dim[1] : 1);
}

static fl_tensor *fl__cuda_room(const fl__cuda_rnn_run *r, fl_shape s) {
    fl_tensor *t = fl_out_on(r->call->in[0]->backend, s, r->call->in[0]->dtype);
    return t && fl_out_allocate(t) ? t : NULL;
}

static bool fl__cuda_times(fl_tensor y, fl_tensor a, fl_tensor b) {
    return fl_call_into(FL_OP_matmul, &y, &a, &b, NULL) != NULL;
}

/* Copies x to y, or fills y with 0 if x is a number. */
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
FL_CUDA_SLOT(fl__cuda_rnn) {
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

/* Workspace of the gradient's steps. Without a projection work, dhidden and projected are empty. */
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

/* Runs all steps, last first. */
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

/* One product, or a sum, over all rows per part of the weights. */
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

/* x, h0, c0, w, lengths, flat y, reserve, dy -> [dx], [dh0], [dc0], [dw]. The reserve must come from the
   slot above; otherwise the composition runs, which does not use it. */
FL_CUDA_SLOT(fl__cuda_rnn_grad) {
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

FL_PRIVATE void fl__cuda_recurrent_slots(fl_backend *cuda) {
    fl_backend_set(cuda, fl_op_rnn, fl__cuda_rnn, FL_SLOT_CONTIGUOUS);
    fl_backend_set(cuda, fl_op_rnn_grad, fl__cuda_rnn_grad, FL_SLOT_CONTIGUOUS);
}

#endif
#endif
/* MIT licence: see LICENSE. */
